"""Sends this process's spans where the usual `OTEL_*` environment says, with an SDK that the deployment brings."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points

from opentelemetry import trace

logger = logging.getLogger(__name__)

_GROUP = "opentelemetry_traces_exporter"
# What `otlp` stands for, by protocol; the specification's default comes first.
_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}


def start_tracing(service: str) -> None:
    """Install a tracer provider with the exporters in `OTEL_TRACES_EXPORTER`, as `service` unless the
    environment names it. Does nothing without that variable, or when a provider is there already
    (`opentelemetry-instrument` installs one). What is missing is logged: a process works without.
    """
    environment = os.environ
    names = exporter_names(environment)
    if not names or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        from opentelemetry.sdk.resources import SERVICE_NAME, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        logger.warning("OTEL_TRACES_EXPORTER is set, and opentelemetry-sdk is not installed")
        return
    named = "OTEL_SERVICE_NAME" in environment or SERVICE_NAME in environment.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    # Sampler, limits and the rest of the resource are read from the environment by the SDK itself.
    provider = TracerProvider(resource=Resource.create({} if named else {SERVICE_NAME: service}))
    for name in names:
        found = _exporter(name)
        if found is None:
            logger.warning("there is no exporter %s for spans: install its package", name)
            continue
        provider.add_span_processor(BatchSpanProcessor(found.load()()))
    trace.set_tracer_provider(provider)


def exporter_names(environment: Mapping[str, str]) -> list[str]:
    """The exporters that the environment asks for, by their registered names; `otlp` by its protocol."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    wanted = [name.strip() for name in environment.get("OTEL_TRACES_EXPORTER", "").split(",")]
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    otlp = _OTLP.get(protocol.strip(), protocol.strip())
    return [otlp if name == "otlp" else name for name in wanted if name and name.lower() != "none"]


def _exporter(name: str) -> EntryPoint | None:
    return next(iter(entry_points(group=_GROUP, name=name)), None)
