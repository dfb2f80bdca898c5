"""What this room needs of h2's inside. A version of h2 that has changed it fails here, with what it is that changed.

``net/rpc/http2.py`` says why h2 is shown no payload of DATA and no WINDOW_UPDATE. That works as long as h2 keeps a few
numbers where they are. These tests must pass before the versions in ``pyproject.toml`` are others.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

import pytest
from h2.config import H2Configuration
from h2.connection import ConnectionState, H2Connection
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings
from hyperframe.frame import DataFrame, Frame, SettingsFrame, WindowUpdateFrame

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x"), ("content-length", "300")]


@contextmanager
def needed(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        pytest.fail(f"h2 {version('h2')} is not as net/rpc/http2.py needs it: {what} ({error!r})")


@pytest.fixture
def server() -> H2Connection:
    """A server's connection, with stream 1 open and its answer begun."""
    peer = H2Connection(H2Configuration(client_side=True))
    peer.initiate_connection()
    peer.send_headers(1, HEADERS)
    connection = H2Connection(H2Configuration(client_side=False))
    connection.initiate_connection()
    connection.receive_data(peer.data_to_send())
    connection.send_headers(1, [(":status", "200")])
    connection.data_to_send()
    return connection


def test_the_outbound_windows_are_two_numbers(server: H2Connection) -> None:
    stream = server.streams[1]
    with needed("outbound_flow_control_window of connection and stream are what may be sent"):
        server.outbound_flow_control_window -= 1000
        assert server.local_flow_control_window(1) == 64_535
        stream.outbound_flow_control_window -= 2000
        assert server.local_flow_control_window(1) == 63_535
    with needed("SETTINGS shift the window of each stream, and not the connection's"):
        server.receive_data(SettingsFrame(0, settings={4: 100}).serialize())
        assert (server.outbound_flow_control_window, stream.outbound_flow_control_window) == (64_535, -1900)
    with needed("WINDOW_UPDATE adds to the same numbers"):
        server.receive_data(WindowUpdateFrame(1, 2000).serialize() + WindowUpdateFrame(0, 5).serialize())
        assert (server.outbound_flow_control_window, stream.outbound_flow_control_window) == (64_540, 100)


def test_a_frame_that_is_shown_without_its_payload_changes_only_the_state_of_its_stream(server: H2Connection) -> None:
    stream = server.streams[1]
    windows = server.inbound_flow_control_window, stream.inbound_flow_control_window
    with needed("H2Stream._track_content_length counts what is not shown, and raises for more than was said"):
        stream._track_content_length(300, True)
        with pytest.raises(ProtocolError):
            stream._track_content_length(1, False)
        stream._track_content_length(-1, False)
    with needed("an empty DATA frame ends its stream and takes nothing of the windows"):
        server.receive_data(DataFrame(1, flags=["END_STREAM"]).serialize())
        assert (server.inbound_flow_control_window, stream.inbound_flow_control_window) == windows
        assert not stream.closed
        server.end_stream(1)
        assert stream.closed


def test_a_table_has_the_method_for_each_kind_of_frame(server: H2Connection) -> None:
    with needed("_frame_dispatch_table has methods of the connection, by the class of frame, and nothing else"):
        for kind, method in server._frame_dispatch_table.items():
            assert issubclass(kind, Frame)
            assert method == getattr(server, method.__name__)


def test_h2_closes_its_connection_when_it_has_made_a_goaway(server: H2Connection) -> None:
    with needed("state_machine.state is CLOSED then, and only then"):
        assert server.state_machine.state is not ConnectionState.CLOSED
        with pytest.raises(ProtocolError):
            server.receive_data(WindowUpdateFrame(0, 2**31 - 1).serialize())
        assert server.state_machine.state is ConnectionState.CLOSED
        assert server.data_to_send()[3] == 7


def test_settings_that_are_set_before_the_beginning_are_sent_and_hold_at_once() -> None:
    connection = H2Connection(H2Configuration(client_side=False))
    with needed("local_settings may be replaced"):
        connection.local_settings = Settings(client=False, initial_values={SettingCodes.MAX_CONCURRENT_STREAMS: 7})
        connection.initiate_connection()
        assert b"\0\3\0\0\0\7" in connection.data_to_send()
        assert connection.local_settings.max_concurrent_streams == 7
    with needed("they do not change when the peer acknowledges them, so that connections may share them"):
        before = dict(connection.local_settings)
        peer = H2Connection(H2Configuration(client_side=True))
        peer.initiate_connection()
        connection.receive_data(peer.data_to_send() + SettingsFrame(0, flags=["ACK"]).serialize())
        assert dict(connection.local_settings) == before
        assert not any(len(values) > 1 for values in connection.local_settings._settings.values())
    with needed("the bound of decoded headers is the decoder's"):
        assert connection.decoder.max_header_list_size == H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE


def test_the_settings_of_the_peer_may_be_replaced_by_others_of_the_same_values(server: H2Connection) -> None:
    with needed("remote_settings is an attribute, read when it is needed, and changed by SETTINGS in place"):
        server.receive_data(SettingsFrame(0, settings={4: 100}).serialize())
        server.remote_settings = Settings(client=True, initial_values=dict(server.remote_settings))
        server.receive_data(SettingsFrame(0, settings={4: 300, 3: 7}).serialize())
        assert (server.remote_settings[4], server.remote_settings[3]) == (300, 7)
        assert server.streams[1].outbound_flow_control_window == 300
