"""The peers' environments: a folder each with a Python of its own, made when asked for from a lock of all it needs.

No two of the peers agree on the versions of what they share, nor with Skylane.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bench.peers.clients.client import PeerError

_LOCKS = Path(__file__).resolve().parents[1] / "requirements"
_COMPLETE = "complete"  # In the environment: the lock that it was made of.
_SYSTEM = Path("/usr/bin/python3.11")


@dataclass(frozen=True, slots=True)
class Environment:
    """Where a peer's Python is."""

    folder: Path
    lock: Path
    maker: Path  # The Python that makes it.

    @property
    def programs(self) -> Path:
        """The folder of its commands, wherever one is called from."""
        return self.folder.absolute() / "bin"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.programs / "python"

    @property
    def log(self) -> Path:
        """What the last making of it said."""
        return self.folder.with_name(f"{self.folder.name}.log")

    @property
    def server_log(self) -> Path:
        """What its server last said."""
        return self.folder.with_name(f"{self.folder.name}-server.log")

    @property
    def is_complete(self) -> bool:
        """Whether it was made to its end, of the lock as it is now."""
        stamp = self.folder / _COMPLETE
        return stamp.is_file() and stamp.read_bytes() == self.lock.read_bytes()

    def check(self) -> None:
        """Make sure that it can be used.

        Raises:
            PeerError: it is not there, or was made of another lock.
        """
        if not self.folder.is_dir():
            raise PeerError(f"no environment in {self.folder}: skylane bench peers --prepare")
        if not self.is_complete:
            raise PeerError(f"{self.folder} is half made, or of another lock: skylane bench peers --prepare")

    def make(self, on_step: Callable[[str], None]) -> None:
        """Make it anew; pip's output goes to `log`.

        Raises:
            PeerError: a library cannot be had; the log's last line is told.
        """
        (self.folder / _COMPLETE).unlink(missing_ok=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        install: list[str | Path] = [self.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps"]
        with self.log.open("wb") as log:
            on_step("a virtual environment")
            self._run([self.maker, "-m", "venv", "--clear", self.folder], log)
            on_step(f"installing {self.lock.name}")
            self._run([*install, "--require-hashes", "--requirement", self.lock], log)
        (self.folder / _COMPLETE).write_bytes(self.lock.read_bytes())

    def version(self, library: str) -> str:
        """The version of a library that the lock names.

        Raises:
            PeerError: it names none.
        """
        for line in self.lock.read_text(encoding="utf-8").splitlines():
            name, _, version = line.partition("==")
            if name == library and version:
                return version.split()[0]
        raise PeerError(f"{self.lock} names no {library}")

    def _run(self, command: Sequence[str | Path], log: IO[bytes]) -> None:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            log.flush()
            last = self.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            raise PeerError(f"{self.folder.name}: {''.join(last) or 'pip failed'} (all of it in {self.log})")


def environment(peer: str, root: Path | None = None) -> Environment:
    """The environment of a peer, there or not. `root`: the folder of all; None: `build/peers`."""
    return Environment((root or Path("build") / "peers") / peer, _LOCKS / f"{peer}.lock", _maker())


def _maker() -> Path:
    """Triton wants a Python with its shared library in the system's own place, which the distribution's is."""
    return _SYSTEM if _SYSTEM.exists() else Path(sys.executable)
