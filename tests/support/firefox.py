"""Debian's Firefox, headless, over Marionette: JSON with its length in front, on a socket of loopback.

Playwright drives a Firefox of its own build, and that of a distribution with commands that an ESR does not have yet.
Marionette is what geckodriver speaks, it is in every Firefox, and the few commands of a smoke test need no library.
Rules: Firefox Source Docs, "Marionette", "Protocol"; the commands' bodies are those of W3C WebDriver.
"""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.binaries import require_binary
from tests.support.pilot import until

PREFERENCES: Mapping[str, object] = {
    "marionette.port": 0,
    "app.update.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.reportingpolicy.firstRun": False,
}
"""Nothing of Firefox's own between us and the page, and no word to anybody else. Port 0: one that is free."""

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key of a reference to an element: W3C WebDriver, "Elements"."""

PATIENCE_SECONDS = 60.0

SCRIPT_SECONDS = 30.0
"""For what a test waits for in the page."""

ERRORS = """
const [scripts] = arguments;
return Services.console.getMessageArray()
  .filter((each) => each instanceof Ci.nsIScriptError && each.sourceName.startsWith(scripts))
  .filter((each) => !(each.flags & Ci.nsIScriptError.warningFlag))
  .map((each) => each.errorMessage);
"""


class FirefoxError(Exception):
    """What Firefox answers to a command that it cannot do."""


class Firefox:
    """A running Firefox with one window."""

    def __init__(self, connection: socket.socket) -> None:
        self._read = connection.makefile("rb")
        self._connection = connection
        self._last = 0
        self._message()
        self.send("WebDriver:NewSession", capabilities={"alwaysMatch": {}})
        self.send("WebDriver:SetTimeouts", script=int(SCRIPT_SECONDS * 1000))

    def send(self, command: str, **parameters: object) -> Any:
        """A command, and its answer."""
        self._last += 1
        body = json.dumps([0, self._last, command, parameters]).encode()
        self._connection.sendall(b"%d:%s" % (len(body), body))
        _, number, error, result = self._message()
        assert number == self._last
        if error is not None:
            raise FirefoxError(f"{command}: {error['error']}: {error['message']}")
        return result.get("value") if isinstance(result, dict) and set(result) == {"value"} else result

    def _message(self) -> Any:
        size = b""
        while not size.endswith(b":"):
            read = self._read.read(1)
            if not read:
                raise FirefoxError("it ended")
            size += read
        return json.loads(self._read.read(int(size[:-1])))

    def open(self, url: str) -> None:
        """Load an address, or go to it within the page that it is of."""
        self.send("WebDriver:Navigate", url=url)

    def run(self, script: str, *arguments: object) -> Any:
        """What a script returns, called with arguments."""
        return self.send("WebDriver:ExecuteScript", script=script, args=list(arguments))

    def wait(self, condition: str, *arguments: object) -> None:
        """Wait until an expression of JavaScript is true; it is looked at with each frame."""
        script = f"""
          const [...arg] = arguments, done = arg.pop();
          const look = () => ({condition}) ? done() : setTimeout(look, 20);
          look();
        """
        self.send("WebDriver:ExecuteAsyncScript", script=script, args=list(arguments))

    def element(self, xpath: str) -> str:
        """The first element that an XPath finds."""
        found = self.send("WebDriver:FindElement", using="xpath", value=xpath)
        return str(found[ELEMENT])

    def click(self, element: str) -> None:
        """Click an element, as a person would: it is scrolled to, and must not be hidden."""
        self.send("WebDriver:ElementClick", id=element)

    def click_at(self, xpath: str) -> None:
        """Click the first element that an XPath finds, as it is then: a live page may replace it in between."""
        while True:
            try:
                return self.click(self.element(xpath))
            except FirefoxError as error:
                if "stale element" not in str(error):
                    raise

    def type(self, element: str, text: str) -> None:
        """Type into an element."""
        self.send("WebDriver:ElementSendKeys", id=element, text=text)

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, wherever the focus is."""
        actions = [{"type": way, "value": key} for key in keys for way in ("keyDown", "keyUp")]
        self.send("WebDriver:PerformActions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def errors(self, url: str) -> list[str]:
        """The errors of scripts whose addresses begin with this one."""
        self.send("Marionette:SetContext", value="chrome")
        found = self.run(ERRORS, url)
        self.send("Marionette:SetContext", value="content")
        return list(found)


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """A Firefox with its own profile, for the length of the block. Skipped, or failing in CI, without one."""
    binary = require_binary("firefox-esr", "FIREFOX")
    profile.mkdir(exist_ok=True)
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});\n" for name, value in PREFERENCES.items())
    (profile / "user.js").write_text("".join(lines))
    port = profile / "MarionetteActivePort"
    command = [binary, "--headless", "--no-remote", "--profile", profile, "--marionette"]
    with (profile / "log").open("wb") as log:
        process = subprocess.Popen([*command, "--remote-allow-system-access"], stdout=log, stderr=log)
    try:
        until(lambda: port.exists() and port.read_text() != "", PATIENCE_SECONDS, "Firefox listens")
        with socket.create_connection(("127.0.0.1", int(port.read_text())), PATIENCE_SECONDS) as connection:
            yield Firefox(connection)
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
