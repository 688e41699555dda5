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

from cloud.isolation.engine import IsolatedEngine, IsolationError, IsolationLimits, ProcessLostError
from cloud.models.loader import ModelLoader
from shared.inference.engine import EngineError, InferenceError
from shared.inference.table import ENGINES, EngineEntry
from shared.models.manifest import Placement, Precision
from shared.network.endpoint import BROKER_PASSWORD_VARIABLES, TOKEN_VARIABLES
from tests.cloud.isolation import nasty
from tests.support.workshop import Workshop

WAIT_S = 60.0


@pytest.fixture(autouse=True, scope="module")
def _engines() -> Iterator[None]:
    """Adds the faulty engine to the table of engines."""
    with pytest.MonkeyPatch.context() as patched:
        entry = EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",))
        patched.setitem(ENGINES, "nasty", entry)
        yield


def _nasty(path: str = "model", limits: IsolationLimits = nasty.PATIENT, **placement: Any) -> IsolatedEngine:
    return nasty.Watched(Path(path), nasty.manifest(), Placement(**placement), engine="nasty", limits=limits)


@pytest.fixture(scope="module")
def _opened() -> Iterator[IsolatedEngine]:
    opened = _nasty()
    yield opened
    opened.close()
    assert not psutil.pid_exists(opened.pid)


@pytest.fixture
def engine(_opened: IsolatedEngine) -> IsolatedEngine:
    """The faulty engine in a separate process, warmed up; all tests share it."""
    _opened.infer(nasty.pictures(0))
    return _opened


def test_outputs_equal_those_of_the_engine_itself(workshop: Workshop, pictures: npt.NDArray[np.uint8]) -> None:
    """A TensorFlow graph gives the same bits, in batches of any size."""
    from cloud.engines.tensorflow.runtime import tf  # noqa: PLC0415 - only this test needs it.

    workshop.add("small", workshop.graph(lambda scores: tf.cast(tf.argmax(scores, -1), tf.uint8)))
    repository = workshop.repository
    with ModelLoader(repository).open("small") as direct:
        stored = repository.find("small")
        isolated = IsolatedEngine(stored.file(), stored.manifest, Placement(device="cpu"), engine="tensorflow")
        try:
            assert (isolated.name, isolated.device, isolated.precision) == ("tensorflow", "cpu", Precision.FP32)
            assert isolated.batch_size is None
            for part in (pictures[:1], pictures):
                np.testing.assert_array_equal(isolated.infer(part)["mask"], direct.infer(part)["mask"])
        finally:
            isolated.close()


def test_the_process_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model is code, and must not be able to send them anywhere."""
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


def test_outputs_are_not_overwritten_by_the_next_batch(engine: IsolatedEngine) -> None:
    """A mask is still being encoded while the next batch is inferred."""
    first = engine.infer(nasty.pictures(1))["mask"]
    second = engine.infer(nasty.pictures(2, 3, 4))["mask"]
    assert (first == 1).all()
    np.testing.assert_array_equal(second[:, 0, 0], [2, 3, 4])


def test_outputs_may_become_larger(engine: IsolatedEngine) -> None:
    """The shared memory grows with them."""
    assert engine.infer(nasty.pictures(nasty.WIDE))["mask"].shape == (1, nasty.HEIGHT, 64 * nasty.WIDTH)
    assert engine.infer(nasty.pictures(5))["mask"].shape == (1, nasty.HEIGHT, nasty.WIDTH)


def test_an_inference_error_is_passed_on(engine: IsolatedEngine) -> None:
    """The process continues to run."""
    before = engine.pid
    with pytest.raises(InferenceError, match="the model returned NaN"):
        engine.infer(nasty.pictures(nasty.RAISE))
    assert (engine.infer(nasty.pictures(6))["mask"] == 6).all()
    assert engine.pid == before


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (nasty.BUG, "ZeroDivisionError: a bug"),
        (nasty.HANG, r"was killed: a batch of 1 took more than [\d.]+ s"),
        (nasty.EXIT, "ended with code 7 at a batch of 1"),
        (nasty.CRASH, "was ended by SIGSEGV at a batch of 1"),
    ],
    ids=["bug", "hang", "exit", "crash"],
)
def test_a_lost_process_is_replaced(engine: IsolatedEngine, number: int, said: str) -> None:
    """The next batch gets its outputs."""
    before = engine.pid
    with pytest.raises(InferenceError, match=said):
        engine.infer(nasty.pictures(number))
    assert (engine.infer(nasty.pictures(7))["mask"] == 7).all()
    assert engine.pid != before
    assert not psutil.pid_exists(before)


def test_memory_of_the_process_is_limited() -> None:
    """The limit does not apply to the worker."""
    eater = _nasty(limits=IsolationLimits(memory_bytes=1 << 30))
    try:
        with pytest.raises(InferenceError, match=r"MemoryError|allocate|ended"):
            eater.infer(nasty.pictures(nasty.EAT))
    finally:
        eater.close()


def test_a_process_that_was_killed_between_batches_is_reported(engine: IsolatedEngine) -> None:
    """The kernel kills a process when memory runs out."""
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(ProcessLostError, match="SIGKILL \\(usually out of memory\\)"):
        engine.infer(nasty.pictures(1))
    assert (engine.infer(nasty.pictures(8))["mask"] == 8).all()


def test_errors_of_opening_are_passed_on() -> None:
    """The file is invalid, the engine raises an error, or it ends its process."""
    with pytest.raises(EngineError, match="none: cannot be read"):
        IsolatedEngine(Path("none"), nasty.manifest(), Placement(device="cpu"), engine="onnxruntime")
    with pytest.raises(IsolationError, match="raises is nasty"):
        _nasty("raises")
    with pytest.raises(
        IsolationError, match=r"ended with code 9 at opening the model.*limit is 1024 MiB, which may be too"
    ):
        _nasty("exits", IsolationLimits(memory_bytes=1 << 30))


def test_the_process_does_not_receive_ctrl_c(engine: IsolatedEngine) -> None:
    """The worker drains after Ctrl-C and needs its engine for that."""
    assert os.getpgid(engine.pid) != os.getpgid(0)


PARENT = textwrap.dedent("""
    from pathlib import Path
    from shared.models.manifest import Placement
    from shared.inference.table import ENGINES
    from shared.inference.table import EngineEntry
    from cloud.isolation.engine import IsolatedEngine
    from tests.cloud.isolation import nasty

    ENGINES["nasty"] = EngineEntry("tests.cloud.isolation.nasty:Nasty", "cloud", ("frozen_graph",))
    engine = IsolatedEngine(Path("model"), nasty.manifest(), Placement(), engine="nasty")
    engine.infer(nasty.pictures(0))
    print(engine.pid, flush=True)
    engine.infer(nasty.pictures(nasty.HANG))
""")


def _shared() -> set[Path]:
    """Files of Python's shared memory; other programs use other names."""
    return set(Path("/dev/shm").glob("psm_*"))


def test_the_process_ends_with_its_worker() -> None:
    """This includes a worker that was killed and an engine that hangs; no shared memory remains."""
    before = _shared()
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
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


def test_a_replacement_process_refuses_a_changed_file(tmp_path: Path) -> None:
    """Each reply has the hash of the model, which must be that of the file that runs."""
    (tmp_path / "model").write_bytes(b"loaded")
    engine = _nasty(str(tmp_path / "model"))
    try:
        (tmp_path / "model").write_bytes(b"another")
        with pytest.raises(ProcessLostError):
            engine.infer(nasty.pictures(nasty.CRASH))
        with pytest.raises(InferenceError, match=r"model has changed since it was loaded: load it again"):
            engine.infer(nasty.pictures(0))
        (tmp_path / "model").write_bytes(b"loaded")
        engine.infer(nasty.pictures(0))
    finally:
        engine.close()


def test_output_of_the_process_is_logged(engine: IsolatedEngine, caplog: pytest.LogCaptureFixture) -> None:
    """It becomes lines of the worker's log, with the restart and its reason."""
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
