"""docker-compose.yml as Compose reads it without any variables set."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
COMPOSE: Mapping[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def with_defaults(value: Any) -> Any:
    """Replaces `${NAME:-default}` by the default and `$$` by `$`, in all texts of a value."""
    if isinstance(value, dict):
        return {key: with_defaults(each) for key, each in value.items()}
    if isinstance(value, list):
        return [with_defaults(each) for each in value]
    if isinstance(value, str):
        return re.sub(r"(?<!\$)\$\{\w+:-([^}]*)\}", r"\1", value).replace("$$", "$")
    return value


SERVICES: Mapping[str, Any] = with_defaults(COMPOSE["services"])
