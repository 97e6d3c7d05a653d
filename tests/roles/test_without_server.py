from __future__ import annotations

from tmrl_core.metrics import names
from tmrl_core.metrics.recorder import Recorder
from tmrl_core.metrics.sinks import MemorySink
from tmrl_core.roles.without_server import OfflineInterface


def test_an_event_is_written_at_the_updates_of_the_latest_round() -> None:
    sink = MemorySink()
    recorder = Recorder([sink])
    interface = OfflineInterface(recorder, stop_requested=lambda: False, on_rest=lambda: None, on_publish=lambda: None)
    interface.event(names.EVENT_COMPILING, "no update is made meanwhile")
    interface.record_round({"updates": 40})
    interface.event(names.EVENT_COMPILED, "compiled in 31.0 s")
    interface.event(names.EVENT_END, "all epochs are done", step=50)
    recorder.close()
    events = [record for record in sink.records if record.kind == "event"]
    assert [(record.step, record.text(names.MESSAGE)) for record in events] == [
        (0, "no update is made meanwhile"),
        (40, "compiled in 31.0 s"),
        (50, "all epochs are done"),
    ]
