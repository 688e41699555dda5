"""An executor is added with one file, this one, and one line in the table: here one that runs in the same process."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from ops.batch.executor import EXECUTORS, BagOutcome, BagProgress
from ops.batch.frames import BagEnd
from ops.batch.library import LibraryBag
from ops.batch.output.results import ResultWriter
from ops.batch.settings import BatchSettings
from ops.batch.steps import FrameInference, decode_bag
from shared.registry import Entry
from tests.ops.batch.rig import contents, run, write_library


class SerialExecutor:
    """Does one bag after the other."""

    def run(
        self, bags: Sequence[LibraryBag], settings: BatchSettings, on_progress: Callable[[BagProgress], None]
    ) -> Generator[BagOutcome]:
        """See Executor."""
        with closing(FrameInference(settings)) as model:
            for bag in bags:
                writer = ResultWriter(bag, settings)
                for item in decode_bag(bag, settings):
                    if isinstance(item, BagEnd):
                        yield writer.finish(item)
                    else:
                        writer.write(model.run(item))
                        on_progress(BagProgress(bag.name, writer.frames, item.total))


def test_a_new_executor_gives_the_results_of_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is chosen by its name in the table."""
    monkeypatch.setitem(EXECUTORS, "serial", Entry(f"{__name__}:SerialExecutor", "batch"))
    library = write_library(tmp_path / "library", bags=2)
    assert run(library, tmp_path / "serial", executor="serial").failed == {}
    assert run(library, tmp_path / "local").failed == {}
    assert contents(tmp_path / "serial") == contents(tmp_path / "local")
