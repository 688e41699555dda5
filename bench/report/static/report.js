"use strict";
(() => {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const frames = read("frames");
  const toggles = read("toggles");
  const panel = document.getElementById("frame");
  const NOT_MEASURED = -2147483648;
  const PRINT_WIDTH = 680; // Pixels between the margins of an A4 page.
  const plots = [...document.querySelectorAll(".chart")];
  let table = null; // Decoded columns of the frames.
  let opener = null; // The element that had the focus before a frame was opened.

  // Without WebGL, points are drawn as vectors; more of them would make the page slow.
  const MAX_VECTORS = 4000;
  const ARRAYS = { f8: Float64Array, f4: Float32Array, i4: Int32Array, i2: Int16Array, i1: Int8Array, u4: Uint32Array, u2: Uint16Array, u1: Uint8Array };
  const hasWebgl = Boolean(document.createElement("canvas").getContext("webgl"));

  function decodeArray(column) {
    if (!column || !column.bdata) return column;
    const bytes = Uint8Array.from(atob(column.bdata), (letter) => letter.charCodeAt(0));
    return new ARRAYS[column.dtype](bytes.buffer);
  }

  function asVectors(plot, trace) {
    if (trace.type !== "scattergl") return trace;
    const columns = Object.fromEntries(["x", "y", "customdata", "text"].map((name) => [name, decodeArray(trace[name])]));
    const step = Math.ceil(columns.x.length / MAX_VECTORS);
    if (step > 1) {
      const caption = document.getElementById(`caption-${nameOf(plot)}`);
      caption.append(` This browser has no WebGL: only one point in ${step} of ${trace.name} is drawn.`);
    }
    for (const [name, column] of Object.entries(columns)) {
      if (column && typeof column !== "string") columns[name] = Array.from(column).filter((_, index) => index % step === 0);
    }
    return { ...trace, ...columns, type: "scatter" };
  }

  const nameOf = (plot) => plot.id.slice("plot-".length);

  function draw(plot) {
    if (plot.dataset.drawn) return;
    plot.dataset.drawn = "yes";
    const figure = read(`chart-${nameOf(plot)}`);
    const traces = hasWebgl ? figure.data : figure.data.map((trace) => asVectors(plot, trace));
    Plotly.newPlot(plot, traces, figure.layout, {
      responsive: true, displaylogo: false, showSendToCloud: false,
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
    });
    plot.on("plotly_click", (event) => {
      const sequence = event.points.map((point) => point.customdata).find((value) => typeof value === "number");
      if (sequence !== undefined && nameOf(plot) === "timeline") open(sequence);
    });
  }

  // Each chart is drawn when the reader scrolls near it, so that the page opens quickly.
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { near.unobserve(entry.target); draw(entry.target); }
  }, { rootMargin: "800px" });
  plots.forEach((plot) => near.observe(plot));

  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    for (const plot of plots) { draw(plot); Plotly.relayout(plot, { width: PRINT_WIDTH }); }
  });
  window.addEventListener("afterprint", () => {
    for (const plot of plots) Plotly.relayout(plot, { width: null, autosize: true });
  });

  for (const button of document.querySelectorAll("[data-toggle]")) {
    button.addEventListener("click", () => {
      const plot = document.getElementById(`plot-${button.dataset.chart}`);
      draw(plot);
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

  // Decodes a column of int32: base64, DEFLATE (zlib format), four byte planes.
  async function unpack(text) {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const count = planes.length / 4;
    const bytes = new Uint8Array(planes.length);
    for (let index = 0; index < count; index++) {
      for (let byte = 0; byte < 4; byte++) bytes[4 * index + byte] = planes[byte * count + index];
    }
    return new Int32Array(bytes.buffer);
  }

  async function unpackAll() {
    const names = Object.keys(frames.columns);
    const columns = await Promise.all(names.map((name) => unpack(frames.columns[name])));
    const byName = Object.fromEntries(names.map((name, index) => [name, columns[index]]));
    const rows = new Map();
    byName.sequence.forEach((sequence, row) => rows.set(sequence, row));
    return { columns: byName, rows };
  }

  function element(tag, text, attributes = {}) {
    const made = document.createElement(tag);
    if (text) made.textContent = text;
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  }

  async function open(sequence) {
    if (!frames.columns) return;
    table = table || await unpackAll();
    const row = table.rows.get(sequence);
    if (row === undefined) return;
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
    const value = (name) => table.columns[name][row];
    const word = (name) => frames.words[name][value(name)];
    const ms = (name) => value(name) === NOT_MEASURED ? null : value(name) / 1000;
    const shown = (number) => number === null ? "–" : `${number.toFixed(3)} ms`;
    const button = element("button", "Close", { type: "button", class: "close" });
    button.addEventListener("click", close);
    const parts = [button, element("h3", `${frames.vehicle} ${word("camera")} #${sequence}`)];
    const reason = word("reason") ? `: ${word("reason")}` : "";
    parts.push(element("p", `${word("outcome")}${reason}; total ${shown(ms("total"))}`, { class: "fact" }));
    const image = frames.images[sequence];
    if (image) parts.push(element("img", "", { src: image, alt: "The frame with the model's result" }));
    const known = frames.stages.filter((stage) => ms(stage.name) !== null);
    if (known.length) parts.push(stages(known, ms));
    const how = word("engine") ? ` with ${word("engine")}, version ${word("model_version")},` : "";
    const facts = [
      `frame ${value("frame_index")} of the source`,
      value("due") === NOT_MEASURED ? "" : `due at ${(value("due") / 10000).toFixed(3)} s`,
      ms("uplink") === null ? "" : `uplink ${shown(ms("uplink"))}, downlink ${shown(ms("downlink"))}, each ± ${shown(ms("clock_error"))}`,
      word("worker") ? `by ${word("worker")}${how} in a batch of ${value("batch_size")}` : "",
      `${value("bytes_up").toLocaleString("en")} bytes up, ${value("bytes_down").toLocaleString("en")} down`,
      value("attempts") > 1 ? `sent ${value("attempts")} times` : "",
      `session ${frames.session}`,
    ];
    parts.push(element("p", facts.filter(Boolean).join(" · "), { class: "fact" }));
    return parts;
  }

  function stages(known, ms) {
    const longest = Math.max(...known.map((stage) => ms(stage.name)), 0.001);
    const body = element("tbody");
    for (const stage of known) {
      const line = element("tr", "", { title: `the frame ${stage.meaning}` });
      const name = element("th", stage.name, { scope: "row" });
      name.prepend(element("span", "", { class: `swatch swatch-${stage.name}`, "aria-hidden": "true" }));
      const track = element("td", "", { class: "track" });
      track.append(element("i", "", { class: `swatch-${stage.name}`, style: `width:${100 * ms(stage.name) / longest}%` }));
      const median = frames.medians[stage.name];
      const over = median === undefined ? "" : `median ${median.toFixed(3)}`;
      line.append(name, track, element("td", `${ms(stage.name).toFixed(3)} ms`, { class: "number" }), element("td", over, { class: "number median" }));
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
