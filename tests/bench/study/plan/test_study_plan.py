from pathlib import Path

import pytest

from bench.study.plan.axes import AXES
from bench.study.plan.run_order import run_seed, turns
from bench.study.plan.study_plan import cells, read_plan, values_of
from shared.config import ConfigError
from tests.support.simulated_study import plan_file, plan_of

STUDIES = Path(__file__).parents[4] / "configs" / "studies"


def test_a_study_without_axes_is_one_cell_of_the_defaults(tmp_path: Path) -> None:
    """What a file leaves out must be the documented default, or old files change their meaning."""
    (cell,) = cells(plan_of(tmp_path))
    told = {axis: value for axis, value in cell.columns().items() if axis in AXES}
    assert told == {
        "model": "road-small",
        "engine": "tensorflow",
        "format": "own",
        "precision": "fp32",
        "device": "cpu",
        "transport": "mqtt",
        "codec": "jpeg",
        "resolution": "1936x1216",
        "batch": 1,
        "scenario": "single_stream",
        "vehicles": 1,
        "workers": 1,
        "frames": None,
        "link": "none",
    }


def test_cells_are_all_combinations_and_named_by_what_varies(tmp_path: Path) -> None:
    """A name is a folder's and a report's: it must be short, and tell two cells apart."""
    axes = {"format": ["frozen_graph", "saved_model"], "vehicles": [1, 4], "link": ["none", "4g"], "batch": 2}
    names = [cell.name for cell in cells(plan_of(tmp_path, axes=axes))]
    assert names == [
        "frozen_graph.1-vehicle.no-link",
        "frozen_graph.1-vehicle.4g",
        "frozen_graph.4-vehicles.no-link",
        "frozen_graph.4-vehicles.4g",
        "saved_model.1-vehicle.no-link",
        "saved_model.1-vehicle.4g",
        "saved_model.4-vehicles.no-link",
        "saved_model.4-vehicles.4g",
    ]


def test_exclude_takes_away_and_include_adds_each_cell_once(tmp_path: Path) -> None:
    """A matrix is rarely full: some combinations make no sense, and others lie outside it."""
    planned = cells(
        plan_of(
            tmp_path,
            axes={"codec": ["jpeg", "raw"], "vehicles": [1, 4]},
            exclude=[{"codec": "raw", "vehicles": 4}],
            include=[{"codec": ["zstd", "jpeg"], "vehicles": 1}],
        )
    )
    assert [cell.name for cell in planned] == ["jpeg.1-vehicle", "jpeg.4-vehicles", "raw.1-vehicle", "zstd.1-vehicle"]


def test_a_search_for_capacity_is_not_repeated_for_numbers_of_vehicles(tmp_path: Path) -> None:
    """It finds their number itself: two cells would be one."""
    planned = cells(plan_of(tmp_path, axes={"scenario": ["server", "capacity"], "vehicles": [1, 4]}))
    assert [cell.name for cell in planned] == ["server.1-vehicle", "server.4-vehicles", "capacity.1-vehicle"]


def test_a_link_is_a_profile_or_a_map_and_its_figures_are_columns(tmp_path: Path) -> None:
    """The table must say what a link was like without the file beside it."""
    slow = {"name": "slow", "delay_ms": 50, "bandwidth_mbps": 2}
    none, made = cells(plan_of(tmp_path, axes={"link": ["none", slow]}))
    assert not none.link.is_felt
    assert made.link.is_felt
    columns = made.columns()
    assert (columns["link"], columns["link_delay_ms"], columns["link_bandwidth_mbps"]) == ("slow", 50.0, 2.0)


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"axes": {"codecs": "jpeg"}}, "axes.codecs: unknown key: did you mean codec?"),
        ({"axes": {"transport": "http"}}, "axes.transport.0: no transport 'http' yet: there are mqtt, grpc, tfs-grpc"),
        (
            {"axes": {"transport": ["mqtt", "grpc"], "workers": 2, "link": "4g"}},
            "link 4g with 2 workers by grpc: a link leads to one address",
        ),
        ({"axes": {"engine": ["onnx"]}}, "no engine 'onnx' yet: there are tensorflow, openvino, onnxruntime"),
        ({"axes": {"codec": "jpeg-101"}}, "there are raw, jpeg, png, lz4, zstd, and jpeg-1 to jpeg-100"),
        ({"axes": {"device": "tpu"}}, "axes.device.0: no device 'tpu': use cpu, gpu or gpu:N"),
        ({"axes": {"resolution": "101x100"}}, "write width, x, height, both even, as 1936x1216"),
        ({"axes": {"scenario": "sever"}}, "no scenario 'sever' yet: there are cold_start, same_image"),
        ({"axes": {"vehicles": 0}}, "axes.vehicles.0: Input should be greater than or equal to 1 (given 0)"),
        ({"axes": {"vehicles": [1, 1]}}, "axes.vehicles: a value is there twice: remove one"),
        ({"axes": {"link": "6g"}}, "no link '6g' yet: there are none, 4g, 5g"),
        ({"axes": {"link": {"name": "x", "dely_ms": 1}}}, "axes.link.0.dely_ms: unknown key: did you mean delay_ms"),
        ({"axes": {"link": ["4g", {"name": "4g"}]}}, "axes.link: two different links have one name: rename one"),
        ({"axes": {"model": "road-smal"}}, "axes.model: no model 'road-smal' yet: did you mean road-small"),
        ({"include": [{"model": "nothing-near"}]}, "include.0.model: no model 'nothing-near' yet: choose one of"),
        ({"exclude": [{"codec": "raw"}]}, "exclude.0 matches no combination: correct it or remove it"),
        ({"exclude": [{"codec": "jpeg"}]}, "exclude leaves nothing to run: correct it"),
        ({"exclude": [{}]}, "exclude.0 names no axis: give at least one, or remove it"),
        ({"scenarios": {"server": {"rate": 1}}}, "scenarios.server.rate: unknown key: did you mean rate_hz"),
        ({"scenarios": {"cold_start": {"rate_hz": 1}}}, "scenarios.cold_start.rate_hz: unknown key"),
        ({"axes": {"vehicles": list(range(1, 201)), "workers": list(range(1, 33)), "batch": [1, 2]}}, "12800 cells"),
    ],
)
def test_what_a_study_cannot_mean_names_file_key_and_what_there_is(
    tmp_path: Path, document: dict[str, object], said: str
) -> None:
    """A study may run for hours: every mistake is told before anything runs."""
    path = plan_file(tmp_path, **document)
    with pytest.raises(ConfigError) as caught:
        read_plan(path, tmp_path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


def test_the_order_follows_from_the_seed_alone(tmp_path: Path) -> None:
    """A study that cannot be repeated in its order is no study."""
    planned = cells(plan_of(tmp_path, axes={"format": ["frozen_graph", "saved_model"], "vehicles": [1, 2, 3, 4]}))
    assert turns(planned, 3, 7) == turns(planned, 3, 7)
    assert turns(planned, 3, 7) != turns(planned, 3, 8)
    assert run_seed(7, "a", 1) == run_seed(7, "a", 1) != run_seed(7, "a", 2)


def test_a_repetition_is_a_block_and_each_setup_in_it_has_new_workers(tmp_path: Path) -> None:
    """Blocks keep drift out of the comparison; workers started once for all repetitions would be one sample."""
    planned = cells(plan_of(tmp_path, axes={"format": ["frozen_graph", "saved_model"], "codec": ["jpeg", "raw"]}))
    ordered = turns(planned, 3, 1)
    assert [turn.repetition for turn in ordered] == [1, 1, 2, 2, 3, 3]
    for repetition in (1, 2, 3):
        block = [cell for turn in ordered if turn.repetition == repetition for cell in turn.cells]
        assert sorted(cell.name for cell in block) == sorted(cell.name for cell in planned)
    assert len({tuple(cell.name for turn in ordered[at : at + 2] for cell in turn.cells) for at in (0, 2, 4)}) > 1


def test_a_cold_start_has_a_worker_of_its_own(tmp_path: Path) -> None:
    """After another cell it would not be cold."""
    planned = cells(plan_of(tmp_path, axes={"scenario": ["cold_start", "same_image"], "vehicles": [1, 2]}))
    assert sorted(len(turn.cells) for turn in turns(planned, 1, 1)) == [1, 1, 2]


@pytest.mark.parametrize("file", sorted(STUDIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_that_ships_can_be_planned(file: Path) -> None:
    """They are what a user starts from."""
    plan = read_plan(file, STUDIES.parents[1] / "models")
    assert plan.name == file.stem
    assert all(values for values in values_of(cells(plan)).values())
