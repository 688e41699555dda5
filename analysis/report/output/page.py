"""Renders a report as one self-contained HTML file that loads nothing from the network."""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from html import escape
from importlib import resources
from typing import Final

from analysis.report.content import (
    Caution,
    CellValue,
    Chapter,
    ChapterPart,
    Chart,
    Column,
    FrameList,
    Paragraph,
    ReportContent,
    ReportTable,
)
from analysis.report.output.charts import plotly_script, to_json
from analysis.report.output.number_format import interval, number, text
from analysis.report.stage_styles import STAGES
from analysis.statistics.description import IntervalEstimate

# Forbids all requests, even if a log contains HTML.
_POLICY: Final = (
    "default-src 'none'; img-src data: blob:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; font-src data:"
)
_MAX_NORMAL_COLUMNS: Final = 9  # Tables with more columns use a smaller font.
_HATCHES: Final = {"/": 135, "\\": 45, "-": 0, "|": 90, "x": 45, ".": 0}


def render(report: ReportContent) -> str:
    """Returns the whole page."""
    charts = {chart.name: chart for chart in report.charts()}
    numbers = {name: index for index, name in enumerate(charts, start=1)}
    return "\n".join((
        "<!DOCTYPE html>",
        '<html lang="en">',
        "<head>",
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.title)}</title>",
        '<link rel="icon" href="data:,">',
        f"<style>{_static('report.css')}{_swatches()}</style>",
        "</head>",
        "<body>",
        '<a class="skip" href="#main">Skip to the report</a>',
        f'<nav aria-label="Contents"><p>{escape(report.title)}</p><ol>{"".join(map(_link, report.chapters))}</ol></nav>',
        '<main id="main">',
        _header(report),
        *(_chapter(chapter, numbers) for chapter in report.chapters),
        "</main>",
        '<aside id="frame" aria-live="polite" aria-label="One frame" hidden tabindex="-1"></aside>',
        *(_data(f"chart-{name}", to_json(chart)) for name, chart in charts.items()),
        _data("toggles", json.dumps({name: [asdict(toggle) for toggle in chart.toggles] for name, chart in charts.items()})),
        _data("frames", json.dumps(report.frames)),
        f'<script type="application/octet-stream" id="plotly">{_compressed(plotly_script())}</script>',
        f"<script>{_script(_static('report.js'))}</script>",
        "</body>",
        "</html>",
        "",
    ))  # fmt: skip


def _header(report: ReportContent) -> str:
    """Returns the title, the summary, the key figures, the picture and the cautions of collapsed chapters."""
    figures = "".join(
        f"<div><dt>{escape(figure.label)}</dt><dd>{escape(figure.value)}<span>{escape(figure.note)}</span></dd></div>"
        for figure in report.key_figures
    )
    picture = report.picture
    return "\n".join((
        f'<header><h1>{escape(report.title)}</h1><p class="summary">{escape(report.summary)}</p>',
        *(
            f'<p class="caution"><strong>{escape(chapter.title)}.</strong> {escape(caution.text)} '
            f'<a href="#{chapter.anchor}">Details</a></p>'
            for chapter, caution in report.cautions()
        ),
        f'<dl class="key-figures">{figures}</dl>' if figures else "",
        f'<figure class="picture"><img src="{escape(picture.url)}" alt="{escape(picture.caption)}">'
        f"<figcaption>{escape(picture.caption)}</figcaption></figure>" if picture else "",
        "</header>",
    ))  # fmt: skip


def _compressed(code: str) -> str:
    """Compresses a script by DEFLATE in the zlib format, in base64; report.js decompresses it."""
    return base64.b64encode(zlib.compress(code.encode(), 9)).decode()


def _static(name: str) -> str:
    return resources.files("analysis.report").joinpath("static", name).read_text(encoding="utf-8")


def _script(code: str) -> str:
    """Escapes code so that it cannot end its script element."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _data(name: str, text_of_json: str) -> str:
    """Embeds JSON data; escapes `<`, which could end the element."""
    return (
        f'<script type="application/json" id="{escape(name)}">{text_of_json.replace("<", chr(92) + "u003c")}</script>'
    )


def _link(chapter: Chapter) -> str:
    return f'<li><a href="#{chapter.anchor}">{escape(chapter.title)}</a></li>'


def _chapter(chapter: Chapter, numbers: Mapping[str, int]) -> str:
    parts = "\n".join(_part(part, numbers) for part in chapter.parts)
    heading = f'<h2 id="{chapter.anchor}-title">{escape(chapter.title)}</h2>'
    content = (
        f"<details><summary>{heading}</summary>{parts}</details>" if chapter.is_collapsed else f"{heading}\n{parts}"
    )
    return f'<section id="{chapter.anchor}" aria-labelledby="{chapter.anchor}-title">{content}\n</section>'


def _part(part: ChapterPart, numbers: Mapping[str, int]) -> str:
    match part:
        case Paragraph(content):
            return f"<p>{escape(content)}</p>"
        case Caution(content):
            return f'<p class="caution"><strong>Note.</strong> {escape(content)}</p>'
        case ReportTable():
            return _table(part)
        case Chart():
            return _chart(part, numbers[part.name])
        case FrameList(heading, frames):
            buttons = "".join(
                f'<button type="button" data-frame="{sequence}">{escape(label)}</button>' for sequence, label in frames
            )
            return f'<div class="frames"><span>{escape(heading)}</span>{buttons}</div>'


def _chart(chart: Chart, number_of_figure: int) -> str:
    name = escape(chart.name)
    toggles = "".join(
        f'<button type="button" data-chart="{name}" data-toggle="{index}" aria-pressed="{str(not index).lower()}">{escape(toggle.label)}</button>'
        for index, toggle in enumerate(chart.toggles)
    )
    return (
        f'<figure id="figure-{name}">'
        + (f'<div class="toggles" role="group" aria-label="Scale">{toggles}</div>' if toggles else "")
        + f'<div class="chart" id="plot-{name}" role="img" aria-labelledby="caption-{name}" style="height:{chart.height}px"></div>'
        f'<figcaption id="caption-{name}"><b>Figure {number_of_figure}.</b> {escape(chart.caption)} '
        f'<a href="#figure-{name}" data-csv="{name}">CSV</a></figcaption></figure>'
    )


def _table(table: ReportTable) -> str:
    headings = "".join(f'<th scope="col"{_class(column)}>{escape(column.heading)}</th>' for column in table.columns)
    rows = "\n".join(f"<tr>{''.join(_cells(table.columns, row))}</tr>" for row in table.rows)
    dense = " dense" if len(table.columns) > _MAX_NORMAL_COLUMNS else ""
    caption = "" if table.is_collapsed else f"<caption><span>{escape(table.caption)}</span></caption>"
    shown = (
        f'<div class="table{dense}"><table id="table-{escape(table.name)}">{caption}'
        f"<thead><tr>{headings}</tr></thead><tbody>\n{rows}\n</tbody></table></div>"
    )
    return f"<details><summary>{escape(table.caption)}</summary>{shown}</details>" if table.is_collapsed else shown


def _cells(columns: Iterable[Column], row: Iterable[CellValue]) -> Iterable[str]:
    for index, (column, cell) in enumerate(zip(columns, row, strict=True)):
        inner = _cell(column, cell)
        yield f'<th scope="row">{inner}</th>' if index == 0 else f"<td{_class(column)}>{inner}</td>"


def _class(column: Column) -> str:
    return "" if column.is_text else ' class="number"'


def _cell(column: Column, cell: CellValue) -> str:
    if column.heading == "stage":
        return f'<span class="swatch swatch-{cell}" aria-hidden="true"></span>{escape(str(cell))}'
    if isinstance(cell, IntervalEstimate):
        limits = interval(cell, column.digits)
        return number(cell.value, column.digits) + (f'<span class="interval">{limits}</span>' if limits else "")
    return escape(text(cell, column.digits))


def _swatches() -> str:
    """Returns the CSS rules of the colour samples of all stages."""
    rules = []
    for name, style in STAGES.items():
        background = style.colour
        if style.hatch:
            line = "rgba(0,0,0,.55)" if sum(bytes.fromhex(background[1:])) > 3 * 128 else "rgba(255,255,255,.8)"
            angle = _HATCHES[style.hatch]
            background = f"repeating-linear-gradient({angle}deg,{style.colour} 0 3px,{line} 3px 4px)"
        rules.append(f".swatch-{name}{{background:{background}}}")
    return "".join(rules)
