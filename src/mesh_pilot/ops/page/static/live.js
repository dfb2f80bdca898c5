// Server-sent events. A page that nobody looks at does not listen.

const KINDS = ["revision", "proxies", "nack", "sync", "problems", "reset"];

/** Calls `told(kind, data)` for each event, and `connected(true | false)`. */
export function listen(told, connected) {
  let source = null;

  function open() {
    if (source || document.hidden) return;
    source = new EventSource("/api/v1/events");
    source.onopen = () => connected(true);
    source.onerror = () => {
      connected(false);
      if (source.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 5000);
      }
    };
    for (const kind of KINDS) source.addEventListener(kind, (event) => told(kind, parsed(event.data)));
  }

  function close() {
    source?.close();
    source = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      close();
    } else {
      open();
    }
  });
  open();
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return {};
  }
}
