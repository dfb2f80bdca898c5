"""Asking servers of others: one fetcher, with bounds on bytes, pieces, redirects, time and addresses.

Whatever a stranger answers, it costs a bounded amount of memory and time, in steps between which other tasks run.
Keys of issuers, trust bundles, modules and tokens of registries are fetched by `Fetcher`; clients of servers that the
operator named read their answers by `read_body`.
"""

from mesh_pilot.net.fetching.bodies import Gunzip as Gunzip
from mesh_pilot.net.fetching.bodies import TooLarge as TooLarge
from mesh_pilot.net.fetching.bodies import read_body as read_body
from mesh_pilot.net.fetching.bodies import whole_body as whole_body
from mesh_pilot.net.fetching.errors import FetchError as FetchError
from mesh_pilot.net.fetching.errors import shown_url as shown_url
from mesh_pilot.net.fetching.fetcher import FetchedAnswer as FetchedAnswer
from mesh_pilot.net.fetching.fetcher import Fetcher as Fetcher
from mesh_pilot.net.fetching.owners import OWNER as OWNER
