"""Ports of ServiceEntries that say no protocol."""

from __future__ import annotations

from collections.abc import Iterator

from mesh_pilot.explain.analysis import codes
from mesh_pilot.explain.analysis.analyzers.kubernetes import says_protocol
from mesh_pilot.explain.analysis.findings import AnalysisMessage
from mesh_pilot.explain.analysis.survey import Survey, found


def protocols(survey: Survey) -> Iterator[AnalysisMessage]:
    """Ports with neither a protocol nor a name that begins with one."""
    for config in survey.of("ServiceEntry"):
        for index, port in enumerate(config.spec.ports):
            if not port.protocol and not says_protocol(port.name):
                path = f"spec.ports[{index}].{'name' if port.name else 'number'}"
                yield found(codes.PORT_WITHOUT_PROTOCOL, config, path, port.number, port.name)
