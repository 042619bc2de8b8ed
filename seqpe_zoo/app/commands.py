"""Command line of this room: `app`.

Definitions import nothing heavy; the handler finds the models first, then imports what it needs. It returns
an exit code, or raises a `DataError` that the command line prints.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ..data.errors import DataError


def add_subcommands(subparsers: Any) -> None:
    """Adds the command to the parser of the command line."""
    parser = subparsers.add_parser(
        "app",
        help="a page in the browser: models beyond their training length, two side by side",
        description="Serves a page on this machine. Move the context length or the image size, and see "
        "perplexity or prediction and the heatmap of positions change. Shows the models of a clone's "
        "model_cards/ and of demo_report/models, or those that are named.",
    )
    parser.add_argument(
        "--models", nargs="+", default=[], metavar="DIR_OR_ID", help="model folders, folders of them, Hub ids"
    )
    parser.add_argument("--host", default="127.0.0.1", help="127.0.0.1; 0.0.0.0 lets other machines in")
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser")
    parser.add_argument(
        "--write-space", type=Path, metavar="FOLDER", help="write a Space of these models instead of serving"
    )
    parser.set_defaults(handler=_app)


def _app(options: argparse.Namespace) -> int:
    from .zoo import find_models

    models = find_models(options.models)
    if find_spec("gradio") is None:
        raise DataError("the app needs gradio: pip install 'seqpe-zoo[app]'")
    if options.write_space:
        from .space import write_space

        folder = write_space(models, options.write_space)
        sys.stdout.write(f"wrote {folder}; docs/app.md says how to push it\n")
        return 0

    from .page import build_page, launch_page

    page = build_page(models)
    sys.stdout.write(f"{len(models)} models: {', '.join(model.name for model in models)}\n")
    try:
        _, address, _ = launch_page(
            page,
            server_name=options.host,
            server_port=options.port,
            inbrowser=not options.no_browser,
            prevent_thread_lock=True,
        )
    except OSError as error:
        raise DataError(
            f"cannot serve on {options.host}, port {options.port}: {error}; give another --port"
        ) from error
    sys.stdout.write(f"{address}   (Ctrl-C ends it)\n")
    sys.stdout.flush()
    page.block_thread()
    return 0
