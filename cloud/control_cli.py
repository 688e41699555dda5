"""`skylane cloud control`: sends control requests to a running worker over the broker."""

import json
import queue
import sys
import uuid
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
from msgspec import structs
from rich.console import Console
from rich.text import Text

from shared.errors import SkylaneError, UnknownNameError
from shared.flags import FiniteRange, check_version, topic_name
from shared.messages import topics
from shared.messages.control import CONTROL_CONTENT_TYPE, ControlReply, ControlRequest, Verb, pack_request, unpack_reply
from shared.messages.model_card import ModelCard
from shared.messages.msgpack_reader import MessageError
from shared.mqtt.broker_options import broker_options, connection_from
from shared.mqtt.bus import Ack, Bus, Delivery, Properties
from shared.mqtt.name_guard import online_workers
from shared.quiet import progress_console
from shared.terminal_table import Table

_CHANGE_TIMEOUT_S = {Verb.LOAD: 300.0, Verb.UNLOAD: 60.0}
_QUERY_TIMEOUT_S = 10.0
_RETAINED_TIMEOUT_S = 2.0  # Wait for retained messages, which a broker sends right after the subscription.


class ControlTimeoutError(SkylaneError):
    """A worker did not reply in time, or did not get the request."""


class ControlRefusedError(SkylaneError):
    """A worker refused a request."""


@click.command()
@click.argument("worker", type=topic_name("worker"))
@click.argument("verb", type=click.Choice([verb.value for verb in Verb]))
@click.argument("model", type=topic_name("model"), required=False)
@click.option("--version", callback=check_version, help="Version of the model. [load: the highest; unload: all]")
@click.option("--keep", is_flag=True, help="With load: keep the previous version loaded, for frames that name it.")
@click.option(
    "--timeout", "timeout_s", type=FiniteRange(0.1), help="Seconds to wait for the reply. [10; load: 300, unload: 60]"
)
@click.option(
    "--operator",
    type=topic_name("operator"),
    default="operator",
    show_default=True,
    help="Name of the operator that sends the request.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the reply as JSON.")
@broker_options
def control(*, verb: str, timeout_s: float | None, operator: str, as_json: bool, **flags: Any) -> None:
    """List the models of WORKER, show one, load or unload it.

    The verbs `metadata` and `ready` show the metadata and the readiness of a MODEL.
    """
    command = Verb(verb)
    if not flags["model"] and command in (Verb.METADATA, Verb.LOAD, Verb.UNLOAD):
        raise click.UsageError(f"name a model: skylane cloud control {flags['worker']} {verb} MODEL")
    if flags["version"] and not flags["model"]:
        raise click.UsageError("--version is the version of a MODEL: name the model, or leave --version out")
    if flags["keep"] and command is not Verb.LOAD:
        raise click.UsageError(f"--keep is for load, which replaces a version: leave it out with {verb}")
    request = ControlRequest(
        operator=operator,
        nonce=uuid.uuid4().hex,
        verb=command,
        model=flags["model"] or "",
        version=flags["version"],
        keep=flags["keep"],
    )
    worker = flags["worker"]
    bus = connection_from(flags).open(f"skylane-operator-{request.nonce[:12]}", None, name=request.operator)
    console = progress_console()
    try:
        _check_online(bus, worker)
        with console.status(f"{worker}: {verb} {request.model}".rstrip()):
            reply = ask(bus, worker, request, timeout_s or _CHANGE_TIMEOUT_S.get(command, _QUERY_TIMEOUT_S))
    finally:
        bus.close()
    if as_json:
        click.echo(json.dumps(structs.asdict(reply), indent=2, default=asdict))
    elif not reply.error:
        _print(command, request, reply, Console())
    if reply.error:
        raise ControlRefusedError(f"worker {worker}: {reply.error}")
    if command is Verb.READY and not reply.is_ready:
        sys.exit(1)


def ask(bus: Bus, worker: str, request: ControlRequest, timeout_s: float) -> ControlReply:
    """Sends a request to a worker and waits for its reply.

    Raises:
        ControlTimeoutError: no reply arrived in time, the worker does not receive control requests, or the broker refuses
            the request.
    """
    received: queue.SimpleQueue[ControlReply | Ack] = queue.SimpleQueue()
    reply_topic = topics.REPLIES.of(operator=request.operator, nonce=request.nonce)

    def replied(delivery: Delivery) -> None:
        try:
            reply = unpack_reply(delivery.payload)
        except MessageError:
            return
        if reply.nonce == request.nonce and reply.worker == worker:
            received.put(reply)

    def acknowledged(ack: Ack) -> None:
        if ack.no_subscriber or not ack.accepted:
            received.put(ack)

    bus.subscribe(reply_topic, topics.REPLIES.qos, replied)
    bus.publish(
        topics.CONTROL.of(worker=worker, verb=request.verb.value),
        pack_request(request),
        qos=topics.CONTROL.qos,
        properties=Properties(
            content_type=CONTROL_CONTENT_TYPE, response_topic=reply_topic, correlation=request.nonce.encode()
        ),
        acknowledged=acknowledged,
    )
    try:
        reply_or_ack = received.get(timeout=timeout_s)
    except queue.Empty:
        raise ControlTimeoutError(
            f"worker {worker} did not reply to {request.verb} within {timeout_s:g} s, but may still carry it out: "
            "check with list, or increase --timeout"
        ) from None
    finally:
        bus.unsubscribe(reply_topic)
    if isinstance(reply_or_ack, Ack):
        if reply_or_ack.no_subscriber:
            raise ControlTimeoutError(f"worker {worker} does not accept control requests (--no-control)")
        raise ControlTimeoutError(
            f"the broker did not accept the request to worker {worker} ({reply_or_ack.reason}): only operators may send "
            "them; use an operator's certificate (--tls-cert and --tls-key, or --certs and --operator) or password"
        )
    return reply_or_ack


def _check_online(bus: Bus, worker: str) -> None:
    """Checks that a worker is online by its retained status.

    Raises:
        UnknownNameError: it is not online; the message lists the workers that are.
    """
    online = online_workers(bus, lambda name, _: name == worker, _RETAINED_TIMEOUT_S)
    if worker not in online:
        raise UnknownNameError("worker online by the name", worker, online)


def _print(verb: Verb, request: ControlRequest, reply: ControlReply, console: Console) -> None:
    printers: dict[Verb, Callable[[], None]] = {
        Verb.LIST: lambda: console.print(models_table(reply)),
        Verb.METADATA: lambda: console.print(_metadata(reply)),
        Verb.READY: lambda: click.echo(_readiness(request, reply)),
        Verb.LOAD: lambda: _echo_entries(reply, f"is served after {reply.took_ms or 0:.0f} ms"),
        Verb.UNLOAD: lambda: _echo_entries(reply, "is unloaded"),
    }
    printers[verb]()


def models_table(reply: ControlReply) -> Table:
    """Returns the models of a worker as a table."""
    table = Table(title=f"Models of worker {reply.worker}")
    for heading in ("model", "version", "state", "task", "engine", "SHA-256", ""):
        table.add_column(heading)
    for entry in reply.models:
        cells = (entry.model, entry.version, entry.state, entry.task, entry.engine, entry.sha256[:12], entry.detail)
        table.add_row(*map(Text, cells))
    return table


def _metadata(reply: ControlReply) -> Table:
    assert reply.card is not None
    table = Table(show_header=False)
    for key, value in _facts(reply.card).items():
        table.add_row(key, Text(value))
    table.add_row("state", ", ".join(entry.state for entry in reply.models) or "not loaded")
    return table


def _facts(card: ModelCard) -> dict[str, str]:
    """The non-empty fields of a card as text."""
    facts = {
        "model": card.name,
        "version": card.version,
        "SHA-256": card.sha256,
        "task": card.task,
        "input": f"{card.height}×{card.width} {card.layout}, resized by {card.resize}",
        "classes": ", ".join(card.labels.names),
        "outputs": ", ".join(card.outputs),
        "engine": f"{card.engine} {card.precision}".strip(),
        "cold": f"{card.cold_ms:.0f} ms" if card.cold_ms is not None else "",
        "warm": f"{card.warm_ms:.0f} ms" if card.warm_ms is not None else "",
        "weights": "" if card.trained else "untrained",
    }
    return {key: value for key, value in facts.items() if value}


def _readiness(request: ControlRequest, reply: ControlReply) -> str:
    model = request.model + (f" version {request.version}" if request.version else "")
    state = "ready" if reply.is_ready else "not ready"
    return f"worker {reply.worker}: {f'{model} is {state}' if model else state}"


def _echo_entries(reply: ControlReply, done: str) -> None:
    for entry in reply.models:
        click.echo(f"worker {reply.worker}: {entry.model} version {entry.version} {done}")
