import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from cloud.engines.engine import ENGINES, EngineEntry, EngineError, InferenceError, Placement, Precision
from cloud.isolation.engine import IsolatedEngine, IsolationError, Limits
from cloud.isolation.process import ProcessLostError
from shared.network.address import BROKER_PASSWORD_VARIABLES
from shared.network.env_names import TOKEN_VARIABLES
from tests.cloud.conftest import Workshop
from tests.cloud.isolation import nasty

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of engines holds a nasty one."""
    monkeypatch.setitem(ENGINES, "nasty", EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",)))


def _nasty(path: str = "model", limits: Limits = nasty.PATIENT, **placement: Any) -> IsolatedEngine:
    return nasty.Watched(Path(path), nasty.manifest(), Placement(**placement), engine="nasty", limits=limits)


@pytest.fixture
def engine() -> Iterator[IsolatedEngine]:
    """A nasty engine in a process of its own, warm."""
    opened = _nasty()
    opened.infer(nasty.pictures(0))
    yield opened
    opened.close()
    assert not psutil.pid_exists(opened.pid)


@pytest.mark.parametrize("batch", [1, 3])
def test_it_answers_what_the_engine_itself_answers(
    workshop: Workshop, pictures: npt.NDArray[np.uint8], batch: int
) -> None:
    """Bit for bit, of a real TensorFlow graph, in whatever batches."""
    from cloud.engines.tensorflow.library import tf  # noqa: PLC0415 - only this test needs it.

    workshop.add("small", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    repository = workshop.repository
    with repository.load("small") as direct:
        isolated = IsolatedEngine(repository.file("small"), repository.manifest("small"), Placement(device="cpu"))
        try:
            assert (isolated.name, isolated.device, isolated.precision) == ("tensorflow", "cpu", Precision.FP32)
            assert isolated.batch_size is None
            for start in range(0, 3, batch):
                part = np.ascontiguousarray(pictures[start : start + batch])
                np.testing.assert_array_equal(isolated.infer(part)["mask"], direct.infer(part)["mask"])
        finally:
            isolated.close()


def test_the_process_sees_nothing_that_lets_anybody_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is code, and might tell somebody."""
    for variable in (*BROKER_PASSWORD_VARIABLES, *TOKEN_VARIABLES):
        monkeypatch.setenv(variable, "a secret")
    monkeypatch.setenv("HARMLESS", "seen")
    opened = _nasty()
    try:
        seen = psutil.Process(opened.pid).environ()
    finally:
        opened.close()
    assert seen["HARMLESS"] == "seen"
    assert "a secret" not in seen.values()


def test_an_answer_is_not_overwritten_by_the_next(engine: IsolatedEngine) -> None:
    """A mask is still being encoded while the next batch is inferred."""
    first = engine.infer(nasty.pictures(1))["mask"]
    second = engine.infer(nasty.pictures(2, 3, 4))["mask"]
    assert (first == 1).all()
    np.testing.assert_array_equal(second[:, 0, 0], [2, 3, 4])


def test_answers_may_grow(engine: IsolatedEngine) -> None:
    """Raw tensors may be of any size; what is shared grows with them."""
    assert engine.infer(nasty.pictures(nasty.WIDE))["mask"].shape == (1, nasty.HEIGHT, 64 * nasty.WIDTH)
    assert engine.infer(nasty.pictures(5))["mask"].shape == (1, nasty.HEIGHT, nasty.WIDTH)


def test_what_the_engine_raises_is_raised_here(engine: IsolatedEngine) -> None:
    """Word for word, and the process stays: a failed frame costs nobody anything."""
    before = engine.pid
    with pytest.raises(InferenceError, match="the model returned NaN"):
        engine.infer(nasty.pictures(nasty.RAISE))
    assert (engine.infer(nasty.pictures(6))["mask"] == 6).all()
    assert engine.pid == before


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (nasty.BUG, "ZeroDivisionError: a bug"),
        (nasty.SLEEP, r"was killed: a batch of 1 took more than [\d.]+ s"),
        (nasty.HANG, r"was killed: a batch of 1 took more than [\d.]+ s"),
        (nasty.EXIT, "ended with code 7 at a batch of 1"),
        (nasty.CRASH, "was ended by SIGSEGV at a batch of 1"),
    ],
    ids=["bug", "sleep", "hang", "exit", "crash"],
)
def test_a_process_that_is_lost_is_replaced(engine: IsolatedEngine, number: int, said: str) -> None:
    """And the next batch is answered, whatever this one did."""
    before = engine.pid
    with pytest.raises(InferenceError, match=said):
        engine.infer(nasty.pictures(number))
    assert (engine.infer(nasty.pictures(7))["mask"] == 7).all()
    assert engine.pid != before
    assert not psutil.pid_exists(before)


def test_a_model_that_eats_all_memory_meets_a_limit() -> None:
    """The limit is the process's own; the worker's memory is not touched."""
    eater = _nasty(limits=Limits(memory_bytes=1 << 30))
    try:
        with pytest.raises(InferenceError, match=r"MemoryError|allocate|ended"):
            eater.infer(nasty.pictures(nasty.EAT))
    finally:
        eater.close()


def test_a_process_killed_from_outside_is_said_to_be(engine: IsolatedEngine) -> None:
    """As the kernel does where memory runs out; also between two batches."""
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(ProcessLostError, match="SIGKILL \\(out of memory, as a rule\\)"):
        engine.infer(nasty.pictures(1))
    assert (engine.infer(nasty.pictures(8))["mask"] == 8).all()


def test_why_an_engine_cannot_be_opened_is_said_as_without_isolation() -> None:
    """A file that is none, an engine that ends its process, an engine whose library is missing."""
    with pytest.raises(EngineError, match="none: cannot be read"):
        IsolatedEngine(Path("none"), nasty.manifest(), Placement(device="cpu"))
    with pytest.raises(IsolationError, match="raises is nasty"):
        _nasty("raises")
    with pytest.raises(IsolationError, match="ended with code 9 at opening the model"):
        _nasty("exits")


def test_an_interrupt_of_the_terminal_is_not_the_processs(engine: IsolatedEngine) -> None:
    """Ctrl-C goes to the worker's group; the worker drains, and for that its engine must live."""
    assert os.getpgid(engine.pid) != os.getpgid(0)


PARENT = textwrap.dedent("""
    import os, signal, sys
    from pathlib import Path
    import numpy as np
    from cloud.engines.engine import ENGINES, EngineEntry, Placement
    from cloud.isolation.engine import IsolatedEngine
    from tests.cloud.isolation import nasty

    ENGINES["nasty"] = EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",))
    engine = IsolatedEngine(Path("model"), nasty.manifest(), Placement(), engine="nasty")
    engine.infer(nasty.pictures(0))
    print(engine.pid, flush=True)
    engine.infer(nasty.pictures(int(sys.argv[1])))
""")


def _shared() -> set[Path]:
    """What Python's shared memory has left on this machine; others, such as a browser, come and go there."""
    return set(Path("/dev/shm").glob("psm_*"))


@pytest.mark.parametrize("number", [nasty.SLEEP, nasty.HANG], ids=["sleep", "hang"])
def test_the_process_ends_with_its_worker_whatever_it_is_at(number: int) -> None:
    """Even where the worker is killed with -9 and no line of Python runs any more; nothing shared stays behind."""
    before = _shared()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(number)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        child = psutil.Process(int(parent.stdout.readline()))
        line = parent.stderr.readline()
        assert " output of an engine's process " in line
        assert line.endswith(" line=stuck\n")
        parent.kill()
    gone, alive = psutil.wait_procs([child], timeout=WAIT_S)
    assert gone
    assert not alive
    assert _shared() <= before


def test_a_process_that_takes_over_runs_the_file_that_was_loaded(tmp_path: Path) -> None:
    """Each mask says the hash of its model: another file in its place would answer under that hash."""
    (tmp_path / "model").write_bytes(b"loaded")
    engine = _nasty(str(tmp_path / "model"))
    try:
        (tmp_path / "model").write_bytes(b"another")
        with pytest.raises(ProcessLostError):
            engine.infer(nasty.pictures(nasty.CRASH))
        with pytest.raises(InferenceError, match=r"model was changed since it was loaded: load it again"):
            engine.infer(nasty.pictures(0))
        (tmp_path / "model").write_bytes(b"loaded")
        engine.infer(nasty.pictures(0))
    finally:
        engine.close()


def test_what_an_engines_process_writes_before_it_ends_is_in_the_log(
    engine: IsolatedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    """As lines of the worker's log, for a collector takes no others; with the restart and why."""
    lost = engine.pid
    with pytest.raises(ProcessLostError):
        engine.infer(nasty.pictures(nasty.BUG))
    output = [thread for thread in threading.enumerate() if thread.name == f"engine-output-{lost}"]
    for thread in output:
        thread.join(WAIT_S)
    lines = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    (restarted,) = (line for line in lines if line["event"] == "engine restarted")
    assert "ZeroDivisionError: a bug" in restarted["reason"]
    written = [line["line"] for line in lines if line["event"] == "output of an engine's process"]
    assert "ZeroDivisionError: a bug" in written
