"""A process sends spans where the environment says, and is silent where it says nothing (design §13)."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from app.cli.tracing import exporter_names

_PROGRAM = """
from app.cli.tracing import start_tracing
from harness.telemetry_otel import Tracing
start_tracing("laneway-test")
telemetry = Tracing().below()
print(telemetry is not None, flush=True)
if telemetry is not None:
    telemetry.start("pi.harness.run", {"pi.lane.name": "main"}).end()
"""


def _run(**environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr


def test_spans_go_to_the_exporters_that_are_named() -> None:
    said, _, exported = _run(OTEL_TRACES_EXPORTER="console").partition("\n")
    assert said == "True"
    span = json.loads(exported)
    assert span["name"] == "pi.harness.run"
    assert span["attributes"] == {"pi.lane.name": "main"}
    assert span["resource"]["attributes"]["service.name"] == "laneway-test"


def test_without_the_environment_nothing_is_sent() -> None:
    assert _run() == "False\n"


def test_an_exporter_that_is_not_installed_is_named_and_does_no_harm() -> None:
    said = _run(OTEL_TRACES_EXPORTER="otlp")
    assert said.startswith("True\n")
    assert "otlp_proto_http" in said


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, []),
        ({"OTEL_TRACES_EXPORTER": "none"}, []),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ["otlp_proto_http", "console"]),
        (
            {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            ["otlp_proto_grpc"],
        ),
        (
            {
                "OTEL_TRACES_EXPORTER": "otlp",
                "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            },
            ["otlp_proto_http"],
        ),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_SDK_DISABLED": "true"}, []),
    ],
)
def test_the_usual_variables_are_read(environment: dict[str, str], names: list[str]) -> None:
    assert exporter_names(environment) == names
