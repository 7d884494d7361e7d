"""``ovgpu serve``: a server of models, KServe v2 over REST and gRPC."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ovgpu._util.extras import install_command
from ovgpu.errors import Error
from ovgpu.ops.base import tasks


def add_to(commands: Any) -> None:
    """Add the command to the subparsers ``commands``."""
    parser = commands.add_parser("serve", help="serve models over HTTP and gRPC (KServe v2)")
    parser.add_argument("path", type=Path, help="a model's file or folder, or a repository with NAME/VERSION/model.xml")
    parser.add_argument("--name", default="", help="name of a single model; by default its file's or folder's name")
    parser.add_argument(
        "-d", "--device", default="AUTO", help="CPU, NVIDIA[.n], AUTO (default), or several: MULTI:NVIDIA.0,NVIDIA.1"
    )
    parser.add_argument(
        "--task",
        default="",
        choices=["text_generation", "embeddings", "rerank", "speech2text", "tensors"],
        help="task of models that do not set their own; by default, decoders with a tokenizer generate text, "
        "Whisper writes speech down, and others have inferences (tensors)",
    )
    parser.add_argument("--precision", default="", metavar="TYPE", help="f32, tf32, f16 or bf16")
    parser.add_argument("--cache_dir", default="", metavar="FOLDER", help="folder of compiled kernels and models")
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="start and be ready even if models cannot be loaded",
    )

    network = parser.add_argument_group("network")
    network.add_argument("--host", default="127.0.0.1", help="address to listen on (default: loopback)")
    network.add_argument("--port", type=int, default=8000, help="port of REST (8000); 0 means any free one")
    network.add_argument("--grpc-port", type=int, default=8001, help="port of gRPC (8001); -1 for none")
    network.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with the tokens of which clients must send one"
    )
    network.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain, PEM")
    network.add_argument("--tls-key", type=Path, metavar="FILE", help="private key, PEM")
    network.add_argument(
        "--insecure",
        action="store_true",
        help="listen beyond loopback without a token: anyone who reaches the port can use the models",
    )
    network.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name by which clients without a token may call REST, beside localhost and addresses; * means any",
    )

    network.add_argument(
        "--shared-memory",
        action="store_true",
        help="take tensors in shared memory: clients can read and write all that the server's user can",
    )

    network.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="front-end processes that read requests and write answers, beside the one of the models (1: no others)",
    )

    batches = parser.add_argument_group("batches and sequences")
    batches.add_argument("--max-batch-size", type=int, default=32, metavar="N", help="rows of a batch (32)")
    batches.add_argument("--max-sequences", type=int, default=64, metavar="N", help="open sequences of a model (64)")
    batches.add_argument(
        "--max-wait-ms",
        type=float,
        default=2.0,
        metavar="MS",
        help="milliseconds for which a batch waits for more rows (2)",
    )
    batches.add_argument(
        "--requests", type=int, default=1, metavar="N", help="batches that run side by side on a device (1)"
    )
    batches.add_argument("--no-batching", action="store_true", help="run each inference alone")
    batches.add_argument(
        "--idle-seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="a sequence without inferences ends after this time (300)",
    )
    batches.add_argument(
        "--state-dir",
        type=Path,
        metavar="FOLDER",
        help="save sequences there when the server stops, and go on with them when it starts",
    )
    batches.add_argument(
        "--state-store",
        default=os.environ.get("OVGPU_STATE_STORE"),
        metavar="URL",
        help="save sequences in Redis or Valkey, redis://HOST:PORT/DATABASE, where several servers share them; the "
        "default is the variable OVGPU_STATE_STORE, since other users see the arguments of a process",
    )
    batches.add_argument(
        "--checkpoint-steps",
        type=int,
        default=0,
        metavar="K",
        help="also save a sequence every K steps, before the K-th is answered; with 1, no answered step is lost",
    )
    batches.add_argument(
        "--checkpoint-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="also save a sequence S seconds after the first step that is not saved",
    )
    batches.add_argument(
        "--discard-states",
        action="store_true",
        help="delete saved sequences of models whose files have changed since, instead of keeping their files",
    )

    limits = parser.add_argument_group("limits")
    limits.add_argument(
        "--max-queue",
        type=int,
        default=1024,
        metavar="N",
        help="inferences of a model that wait or run; others are refused (1024)",
    )
    limits.add_argument("--max-body-mib", type=int, default=64, metavar="MIB", help="size of a request (64)")
    limits.add_argument(
        "--max-json-mib",
        type=int,
        default=8,
        metavar="MIB",
        help="size of the JSON in a request (8): it takes long to parse",
    )
    limits.add_argument(
        "--max-held-mib",
        type=int,
        default=1024,
        metavar="MIB",
        help="size of all requests, and of answers that are not read, that are held at a time (1024)",
    )
    limits.add_argument(
        "--max-calls", type=int, default=1024, metavar="N", help="calls and streams of gRPC that are open (1024)"
    )
    limits.add_argument(
        "--poll-seconds",
        type=float,
        default=1.0,
        metavar="S",
        help="look for new models, tokens and certificates this often (1); 0: only when a client or SIGHUP asks",
    )
    limits.add_argument(
        "--grace-seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="time for inferences to end when the server stops (30)",
    )
    limits.add_argument(
        "--drain-seconds",
        type=float,
        default=0.0,
        metavar="S",
        help="time for which the server is not ready, but goes on, before it stops: for load balancers (0)",
    )
    limits.add_argument("--no-access-log", action="store_true", help="do not print a line of JSON for each call")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Serve until SIGTERM or Ctrl-C."""
    import asyncio  # slow to import, as the server is

    try:
        from ovgpu.serve import heap
        from ovgpu.serve.client_sequence import Checkpoints
        from ovgpu.serve.engines import EngineOptions
        from ovgpu.serve.log_queue import logging_to_queues
        from ovgpu.serve.server import Server, ServerOptions, new_event_loop
    except ImportError as error:
        raise Error(
            f"the server needs packages that are not installed ({error.name}): {install_command('serve')}"
        ) from error
    properties = {
        name: value
        for name, value in (("INFERENCE_PRECISION_HINT", args.precision), ("CACHE_DIR", args.cache_dir))
        if value
    }
    server = Server(
        ServerOptions(
            args.path,
            args.name,
            EngineOptions(
                args.device,
                properties,
                not args.no_batching,
                args.max_batch_size,
                args.max_sequences,
                args.max_wait_ms,
                args.requests,
                args.task,
            ),
            host=args.host,
            port=args.port,
            grpc_port=None if args.grpc_port < 0 else args.grpc_port,
            max_queue=args.max_queue,
            idle_seconds=args.idle_seconds,
            poll_seconds=args.poll_seconds,
            body_mib=args.max_body_mib,
            json_mib=args.max_json_mib,
            held_mib=args.max_held_mib,
            max_calls=args.max_calls,
            token_file=args.token_file,
            tls_cert=args.tls_cert,
            tls_key=args.tls_key,
            insecure=args.insecure,
            state_dir=args.state_dir,
            state_store=args.state_store or None,
            checkpoints=Checkpoints(args.checkpoint_steps, args.checkpoint_seconds),
            discard_states=args.discard_states,
            grace_seconds=args.grace_seconds,
            drain_seconds=args.drain_seconds,
            keep_going=args.keep_going,
            allowed_hosts=tuple(args.allowed_host),
            shared_memory=args.shared_memory,
            processes=args.processes,
        )
    )
    heap.set_up()
    tasks.leave_core()
    with logging_to_queues(not args.no_access_log):
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(server.run())
