"""Quarantine: an object that a client refuses (a NACK) costs itself, and nothing next to it.

A refused resource is made from many objects, of many owners. While a client refuses it, no later edit of any of them
takes effect there, and a client that starts has nothing at all. So the guilty object is found and withheld: clients get
its last accepted version in its place, or go without it, until it changes.

*Finding it* (``bisection``). Suspects are the objects that changed since the client last accepted that type of
resource: among those that the refused resource was made from, else among all. First all of them are withheld, which
gives the neighbours' edits their way. Then they are released in groups, and the client's answers tell which group has a
guilty one. Each step is a *trial*. One client at a time of those that a verdict will concern has trials; the others
that refuse wait for it.

*From whom* (``verdicts``, ``reach``). A *domain* is a group of clients whose word counts for each other: the stream
that has a trial; a proxy, by its node id and where it comes from; the proxies of a proven identity; and, once a second
identity refuses the same version, those of a build. Who has accepted anything made of the version keeps it, until it
refuses it itself: a rule that looked at one type and withheld in all took healthy services from their callers. A
client that refuses what another one in its place has accepted, or for a reason that may be its machine's, says
something of itself alone.

*Withholding it* (``world.overlays``). A quarantine is an item of the World, written by the reducer like any other. The
World keeps an overlay for each set of withheld items, which all domains with that set share. An overlay shares all
derived values that do not depend on a withheld item. Without overlays nothing is computed that would not be computed
anyway.

*Bounds.* There are limits to the objects withheld, to the trials per minute and to the overlays; no party (an identity,
or an address) has more than its share. Beyond them, and when no set of suspects explains a refusal, the client is
*held*, as without quarantine: it keeps what it has, and gets the refused resource again when that changes.

``session`` in ``xds`` tells ``controller`` what clients do: it asks ``memory``, ``cases`` decide, ``reports`` log. No
I/O but that of its task, which passes events to the reducer.
"""
