"""`skylane model verify`: each model of a repository, and what is wrong with it."""

import json
from pathlib import Path

from tests.modelling.bright_models import HEIGHT, WIDTH, add, run


def test_verify_passes_a_correct_repository(tmp_path: Path) -> None:
    """A converted model is compared with its source."""
    source = add(tmp_path, "bright")
    add(tmp_path, "copy", converted_from={"model": "bright", "sha256": source}, agreement=1.0)
    ran = run("verify", "--models", tmp_path, "--json")
    assert ran.exit_code == 0
    rows = {row["name"]: row for row in json.loads(ran.stdout)}
    assert rows["bright"]["checks"] == ["manifest", "hash", "tensors", "steady"]
    assert (rows["copy"]["agreement"], rows["copy"]["checks"][-1]) == (1.0, "agreement")


def test_verify_reports_the_failure_of_each_model(tmp_path: Path) -> None:
    """One failure does not stop the verification of the other models; the exit code is 1."""
    source = add(tmp_path, "bright")
    add(tmp_path, "worse", 160.0, converted_from={"model": "bright", "sha256": source}, agreement=1.0)
    add(tmp_path, "orphan", converted_from={"model": "gone", "sha256": "1" * 64})
    add(tmp_path, "noisy", noisy=True)
    add(tmp_path, "changed")
    (tmp_path / "changed" / "model.pb").write_bytes(b"another")
    add(tmp_path, "nameless", labels=[{"name": "dark", "colour": [0, 0, 0]}])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "model.yaml").write_text("fromat: frozen_graph")
    add(tmp_path, "wrong", input={"tensor": "inptu:0", "height": HEIGHT, "width": WIDTH})
    ran = run("verify", "--models", tmp_path, "--json")
    assert ran.exit_code == 1
    failures = {row["name"]: row["failure"] for row in json.loads(ran.stdout)}
    assert failures["bright"] is None
    assert "its floor is 99.9 %" in failures["worse"]
    assert "the repository lacks the model it was converted from (gone, 111111111111…)" in failures["orphan"]
    assert "dropout or noise is active" in failures["noisy"]
    assert "it was changed or is incomplete" in failures["changed"]
    assert "no input tensor 'inptu:0': did you mean input" in failures["wrong"]
    assert (
        "class 1, but names only 1" in failures["nameless"]
    )  # The graph has the arg max: only a run reveals the class.
    assert "did you mean format" in failures["broken"]
    assert run("verify", "bright", "--models", tmp_path).exit_code == 0
    assert "FAILED" in run("verify", "worse", "--models", tmp_path).stdout
