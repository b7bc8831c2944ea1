"""`ncollapse report`: the page for any folder of runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from ncollapse.commands.options import parse_args
from ncollapse.output import writing_to


@dataclass(frozen=True)
class Args:
    """Write report.html for a folder of runs, finished or not.

    The page is one file that needs no network.
    """

    folder: tyro.conf.Positional[Path]
    """The folder of the runs, or of one run."""
    out: Path | None = None
    """Where to write the page; FOLDER/report.html by default."""
    export: Path | None = None
    """Also write every table (CSV, LaTeX) and figure (SVG, PDF, PNG) into this folder."""
    serve: bool = False
    """Serve a page that follows the runs while they go on."""
    host: str = "127.0.0.1"
    """Where to serve; by default to this machine only."""
    port: int = 8377
    """The port to serve on; 0 takes a free one."""


def main(argv: list[str]) -> int:
    """Parse, write, export or serve."""
    args = parse_args(Args, argv, "report")
    if args.serve:
        return serve(args)
    from ncollapse.report import make_report
    from ncollapse.report.html import check_output, write_page

    if args.folder.is_file():
        raise NotADirectoryError(f"PATH {args.folder}: is a file, not a folder of runs")
    page = args.out or args.folder / "report.html"
    check_output(page)
    report = make_report(args.folder)
    if args.export is not None:
        from ncollapse.report.export import export_report

        with writing_to(f"--export {args.export}"):
            written = export_report(report, args.export)
        print(f"{len(written)} files in {args.export}")
    with writing_to(f"--out {page}"):
        write_page(report, page)
    print(page)
    return 0


def serve(args: Args) -> int:
    """Serve until interrupted."""
    from ncollapse.report.serve import make_server

    server = make_server(args.folder, args.host, args.port)
    host, port = server.server_address[:2]
    print(f"http://{host!s}:{port}/ (Ctrl-C ends it)", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    return 0
