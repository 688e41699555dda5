import sys
from types import ModuleType

import pytest

from shared.errors import MissingExtraError, error_reason, install_hint, suggestion


def test_a_missing_library_is_reported_with_the_install_command() -> None:
    """The command installs the extra."""
    assert "pip install 'skylane[bench]'" in str(MissingExtraError("'skylane report'", "pandas", "bench"))


def test_without_pip_another_installation_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Container images have no pip."""
    monkeypatch.setattr(sys, "path", [])
    message = str(MissingExtraError("'skylane report'", "bench", "bench"))
    assert "pip install" not in message
    assert message.endswith("use an installation with 'skylane[bench]'")


def test_the_install_command_does_not_warn_when_distutils_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The import hook of setuptools warns then, and some libraries load distutils. In tests a warning is an error."""
    monkeypatch.setitem(sys.modules, "distutils", ModuleType("distutils"))
    assert "skylane[video]" in install_hint("video")


def test_suggested_names_cannot_control_the_terminal() -> None:
    """They are names of topics of a foreign bag, for example."""
    assert suggestion("camera", ["camera\x1b[2J"]) == ": did you mean camera [2J?"


_ORT = "[ONNXRuntimeError] : 1 : FAIL : "


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            (
                f"{_ORT}/onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::Model(onnx::ModelProto&&, "
                "const onnxruntime::PathString&, const onnxruntime::ModelOptions&) Unsupported model IR version: 99, max "
                "supported IR version: 13\n"
            ),
            f"{_ORT}Unsupported model IR version: 99, max supported IR version: 13",
        ),
        (
            (
                f"{_ORT}/onnxruntime_src/onnxruntime/core/graph/model_load_utils.h:46 void onnxruntime::load::Validate(const "
                "std::unordered_map<std::__cxx11::basic_string<char>, int>&, bool) const Current support is till opset 26."
            ),
            f"{_ORT}Current support is till opset 26.",
        ),
        (
            r"D:\a\_work\1\s\onnxruntime\core\graph\model.cc:149 onnxruntime::Model::Model Unknown model (of a file).",
            "Unknown model (of a file).",
        ),
        (
            "[enforce fail at inline_container.cc:230] . Attempted to read a PyTorch file with version 99.",
            "Attempted to read a PyTorch file with version 99.",
        ),
        (
            (
                "Exception from src/inference/src/cpp/core.cpp:84:\nCheck 'false' failed at src/frontends/report.cpp:151:\n"
                "FrontEnd API failed with OpConversionFailure:\nModel wasn't fully converted.\nSummary:\n"
                "-- No conversion rule found for operations: FooBar-13\n"
            ),
            "-- No conversion rule found for operations: FooBar-13",
        ),
        (
            (
                "Graph execution error:\n\nDetected at node 'y' defined at (most recent call last):\n    File \"/a.py\", line 1\n"
                "Node: 'y'\nInput to reshape is a tensor with 18432 values"
            ),
            "Input to reshape is a tensor with 18432 values",
        ),
        (
            "<class 'Functional'> could not be deserialized.\n\nconfig={}.\n\nException encountered: Could not locate 'My'.",
            "Could not locate 'My'.",
        ),
        ("", "RuntimeError"),
    ],
)
def test_the_reason_of_a_library_is_shown_without_its_sources(text: str, reason: str) -> None:
    """A path of a source file says nothing to a user, and is longer than the reason."""
    assert error_reason(RuntimeError(text)) == reason
