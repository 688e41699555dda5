"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const frames = read("frames");
  const toggles = read("toggles");
  const panel = document.getElementById("frame");
  const PRINT_WIDTH = 680; // Pixels between the margins of an A4 page.
  const NARROW = 560; // Charts of fewer pixels have a smaller font and narrow margins.
  const TITLE_LETTER = 8; // Pixels for each letter of an axis title, a little more than it needs with the margins.
  const plots = [...document.querySelectorAll(".chart")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  // The colours of texts, lines and backgrounds of charts in dark mode; the colours of data stay.
  const DARK = {
    "#ffffff": "#0d1117", "#24292f": "#e6edf3", "#222222": "#e6edf3", "#57606a": "#9da7b3", "#e6e8eb": "#262c36",
    "#8a9099": "#7d8590", "#c4c9d0": "#3d444d", "#f2f7fc": "#101d2c", "#f0f0f0": "#1a1e24", "#fffaf0": "#241d10",
    "#d4d4d4": "#57606a", "#4d4d4d": "#8b949e", "#000000": "#e6edf3", "rgba(255,255,255,0.8)": "rgba(13,17,23,0.8)",
  };
  let opener = null; // The element that had the focus before a frame was opened.

  const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };

  function decodeArray(column) {
    if (!column || !column.bdata) return column;
    const bytes = Uint8Array.from(atob(column.bdata), (letter) => letter.charCodeAt(0));
    return new ARRAYS[column.dtype](bytes.buffer);
  }

  const nameOf = (plot) => plot.id.slice("plot-".length);

  function recoloured(value) {
    if (typeof value === "string") return DARK[value] ?? value;
    if (Array.isArray(value)) return value.map(recoloured);
    if (!value || typeof value !== "object") return value;
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, name === "textfont" ? inner : recoloured(inner)]));
  }

  // Draws a chart in the colours and for the width of the page; legends stand below it as text, which wraps.
  function draw(plot) {
    const name = nameOf(plot);
    const figure = read(`chart-${name}`);
    let { data: traces, layout } = figure;
    if (dark.matches) [traces, layout] = [recoloured(traces), recoloured(layout)];
    const isNarrow = plot.clientWidth < NARROW;
    const listed = layout.showlegend === false ? [] : traces.filter((trace) => trace.name && trace.showlegend !== false);
    layout.showlegend = false;
    layout.margin = { ...layout.template.layout.margin, t: 12, ...(isNarrow && { l: 8, r: 12 }) };
    if (isNarrow) {
      layout.font = { ...layout.template.layout.font, size: 11 };
      layout.annotations = layout.annotations?.filter((annotation) => annotation.name !== "wide");
    }
    wrapTitles(layout, plot);
    Plotly.react(plot, traces, layout, {
      responsive: true, displaylogo: false, displayModeBar: "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    });
    if (plot.dataset.drawn) return;
    plot.dataset.drawn = "yes";
    if (listed.length > 1) plot.after(legend(plot, listed));
    plot.on("plotly_click", (event) => {
      const sequence = event.points.map((point) => point.customdata).find((value) => typeof value === "number");
      if (sequence !== undefined && name === "timeline") open(sequence);
    });
  }

  // Breaks the titles of axes into lines that fit the chart.
  function wrapTitles(layout, plot) {
    for (const [name, axis] of Object.entries(layout)) {
      if (!/^[xy]axis/.test(name) || !axis.title?.text) continue;
      const width = name.startsWith("x") ? plot.clientWidth : plot.clientHeight;
      const letters = Math.floor(width / TITLE_LETTER);
      const lines = axis.title.text.split("<br>").flatMap((line) => line.split(" ").reduce((found, word) => {
        const last = found.at(-1);
        return last && last.length + word.length < letters ? [...found.slice(0, -1), `${last} ${word}`] : [...found, word];
      }, []));
      axis.title = { ...axis.title, text: lines.join("<br>") };
    }
  }

  const STROKES = { dash: "6 4", dot: "2 3", dashdot: "6 3 2 3", longdash: "10 4", longdashdot: "10 3 2 3" };

  // Returns the names of the traces with samples of their colours; a click hides or shows a trace.
  function legend(plot, traces) {
    const list = element("ul", "", { class: "legend" });
    for (const trace of traces) {
      const button = element("button", trace.name, { type: "button", "aria-pressed": "true" });
      if (document.querySelector(`.swatch-${CSS.escape(trace.name)}`) && trace.type === "bar") {
        button.prepend(element("span", "", { class: `swatch swatch-${trace.name}` }));
      } else if (trace.mode === "lines" || trace.mode === "lines+markers") {
        const stroke = STROKES[trace.line.dash] ?? "none";
        const sample = document.createElementNS("http://www.w3.org/2000/svg", "svg");
        sample.setAttribute("class", "stroke");
        sample.innerHTML = `<line x1="0" y1="6" x2="26" y2="6" stroke="${trace.line.color}" stroke-width="2.5" stroke-dasharray="${stroke}"/>`;
        button.prepend(sample);
      } else {
        const marker = trace.marker ?? {};
        const colour = marker.line?.width > 1 ? marker.line.color : marker.color;
        button.prepend(element("span", "", { class: "swatch", style: `background:${colour}` }));
      }
      button.addEventListener("click", () => {
        const isShown = button.getAttribute("aria-pressed") === "true";
        button.setAttribute("aria-pressed", String(!isShown));
        const indices = plot.data.flatMap((each, index) => each.name === trace.name ? [index] : []);
        Plotly.restyle(plot, { visible: isShown ? "legendonly" : true }, indices);
      });
      const item = element("li");
      item.append(button);
      list.append(item);
    }
    return list;
  }

  // Downloads the data of a chart: one row for each value of each trace.
  function download(name) {
    const figure = read(`chart-${name}`);
    const title = (axis) => figure.layout[axis]?.title?.text;
    const fields = ["x", "y", "base", "width", "lowerfence", "q1", "median", "q3", "upperfence", "customdata", "text"];
    const columns = figure.data.map((trace) => Object.fromEntries(
      fields.map((field) => [field, decodeArray(trace[field])]).filter(([, column]) => column && typeof column === "object")
    ));
    const used = fields.filter((field) => columns.some((column) => field in column));
    const cell = (value) => /[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
    const headings = used.map((field) => ({ x: title("xaxis"), y: title("yaxis") })[field] ?? field);
    const rows = [["series", ...headings], ...columns.flatMap((column, index) => {
      const count = Math.max(...Object.values(column).map((values) => values.length));
      return Array.from({ length: count }, (_, row) => [
        figure.data[index].name ?? "", ...used.map((field) => column[field]?.[row] ?? ""),
      ]);
    })];
    const text = rows.map((row) => row.map((value) => cell(String(value))).join(",")).join("\n");
    const link = element("a", "", { href: URL.createObjectURL(new Blob([text + "\n"], { type: "text/csv" })), download: `${name}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  for (const link of document.querySelectorAll("[data-csv]")) {
    link.addEventListener("click", (event) => { event.preventDefault(); download(link.dataset.csv); });
  }

  // A link to a collapsed chapter opens it.
  function expand() {
    const details = document.querySelector(`section:target > details`);
    if (!details || details.open) return;
    details.open = true;
    details.scrollIntoView();
  }
  window.addEventListener("hashchange", expand);
  expand();

  // Each chart is drawn when the reader scrolls near it, so that the page opens quickly.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "800px" });
  inflate(document.getElementById("plotly").textContent).then((bytes) => {
    const library = element("script", new TextDecoder().decode(bytes));
    document.head.append(library);
    plots.forEach((plot) => near.observe(plot));
    dark.addEventListener("change", () => plots.filter((plot) => plot.dataset.drawn).forEach(draw));
  });

  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    for (const plot of plots) { if (!plot.dataset.drawn) draw(plot); Plotly.relayout(plot, { width: PRINT_WIDTH }); }
  });
  window.addEventListener("afterprint", () => {
    for (const plot of plots) Plotly.relayout(plot, { width: null, autosize: true });
  });

  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const plot = document.getElementById(`plot-${button.dataset.chart}`);
      if (!plot.dataset.drawn) draw(plot);
      const { traces, layout } = toggles[button.dataset.chart][button.dataset.toggle];
      Plotly.update(plot, traces, layout);
      for (const other of button.parentElement.children) other.setAttribute("aria-pressed", String(other === button));
    });
  }

  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const sections = [...document.querySelectorAll("section")];
  function mark() {
    const reached = sections.filter((section) => section.getBoundingClientRect().top < 140).pop() || sections[0];
    links.forEach((link, id) => id === reached?.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current"));
  }
  document.addEventListener("scroll", mark, { passive: true });
  mark();

  // Decodes bytes: base64, DEFLATE (zlib format).
  async function inflate(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  function open(sequence) {
    const row = frames.columns?.sequence.indexOf(sequence) ?? -1;
    if (row < 0) return;
    if (panel.hidden) opener = document.activeElement;
    panel.replaceChildren(...contents(sequence, row));
    panel.hidden = false;
    panel.scrollTop = 0;
    panel.focus({ preventScroll: true });
  }

  function close() {
    panel.hidden = true;
    if (opener) opener.focus({ preventScroll: true });
  }

  function contents(sequence, row) {
    const value = (name) => frames.columns[name][row];
    const shown = (number) => number === null ? "–" : `${number.toFixed(3)} ms`;
    const button = element("button", "Close", { type: "button", class: "close" });
    button.addEventListener("click", close);
    const parts = [button, element("h3", `${frames.vehicle} ${value("camera")} #${sequence}`)];
    const reason = value("reason") ? `: ${value("reason")}` : "";
    parts.push(element("p", `${value("outcome")}${reason}; total ${shown(value("total"))}`, { class: "fact" }));
    const image = frames.images[sequence];
    if (image) parts.push(element("img", "", { src: image, alt: "The frame with the model's result" }));
    const known = frames.stages.filter((stage) => value(stage.name) !== null);
    if (known.length) parts.push(stages(known, value));
    const how = value("engine") ? ` with ${value("engine")}, version ${value("model_version")},` : "";
    const facts = [
      `frame ${value("frame_index")} of the source`,
      value("due") === null ? "" : `due at ${value("due").toFixed(3)} s`,
      value("uplink") === null ? "" : `uplink ${shown(value("uplink"))}, downlink ${shown(value("downlink"))}, each ± ${shown(value("clock_error"))}`,
      value("gate_distance") === null ? "" : `${value("gate_distance")} from the frame whose result could be reused`,
      value("reused_sequence") === null ? "" : `has the result of #${value("reused_sequence")}`,
      value("local_confidence") === null ? "" : `confidence of the local model ${value("local_confidence")}`,
      value("outcome") === "answered_locally" ? `by the local model${how.replace(/,$/, "")}` : "",
      value("worker") ? `by ${value("worker")}${how} in a batch of ${value("batch_size")}` : "",
      `${(value("bytes_up") ?? 0).toLocaleString("en")} bytes up, ${(value("bytes_down") ?? 0).toLocaleString("en")} down`,
      value("attempts") > 1 ? `sent ${value("attempts")} times` : "",
      `session ${frames.session}`,
    ];
    parts.push(element("p", facts.filter(Boolean).join(" · "), { class: "fact" }));
    return parts;
  }

  function stages(known, value) {
    const longest = Math.max(...known.map((stage) => value(stage.name)), 0.001);
    const body = element("tbody");
    for (const stage of known) {
      const line = element("tr", "", { title: `the frame ${stage.meaning}` });
      const name = element("th", stage.name, { scope: "row" });
      name.prepend(element("span", "", { class: `swatch swatch-${stage.name}`, "aria-hidden": "true" }));
      const track = element("td", "", { class: "track" });
      track.append(element("i", "", { class: `swatch-${stage.name}`, style: `width:${100 * value(stage.name) / longest}%` }));
      const median = frames.medians[stage.name];
      const over = median === undefined ? "" : `median ${median.toFixed(3)}`;
      line.append(name, track, element("td", `${value(stage.name).toFixed(3)} ms`, { class: "number" }), element("td", over, { class: "number median" }));
      body.append(line);
    }
    const made = element("table");
    made.append(body);
    return made;
  }

  for (const button of document.querySelectorAll("[data-frame]")) {
    button.addEventListener("click", () => open(Number(button.dataset.frame)));
  }
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !panel.hidden) close(); });
})();
