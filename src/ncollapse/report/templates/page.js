"use strict";
(function () {
  const root = document.documentElement;
  const GAP_X = 62, GAP_Y = 80, LEFT = 54, RIGHT = 24, ROW = 29;
  const config = {
    displaylogo: false, responsive: false, showLink: false, plotlyServerURL: "", showSendToCloud: false, showEditInChartStudio: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendDataToCloud", "editInChartStudio", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    toImageButtonOptions: { format: "svg", filename: "ncollapse" },
  };
  let figures = collectFigures(document);

  function collectFigures(within) {
    return [...within.querySelectorAll("[data-plot]")].map((div) => ({
      div: div,
      id: div.dataset.plot,
      text: div.parentElement.querySelector('script[type="application/json"]').textContent,
      spec: null,
      slider: null,
    }));
  }

  // Colours are tokens in the specifications ("var:ink", "var:ce@0.2", "hue:120"); the theme fills them in.
  function paint(value, colours) {
    if (typeof value === "string") return resolve(value, colours);
    if (Array.isArray(value)) return typeof value[value.length - 1] === "number" ? value : value.map((item) => paint(item, colours));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, paint(item, colours)]));
    }
    return value;
  }

  function resolve(text, colours) {
    if (text.startsWith("hue:")) return "hsl(" + text.slice(4) + "," + colours("hue-style") + ")";
    if (!text.startsWith("var:")) return text;
    const [name, opacity] = text.slice(4).split("@");
    const colour = colours(name);
    if (!opacity) return colour;
    const channels = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
    return "rgba(" + channels.join(",") + "," + opacity + ")";
  }

  function palette() {
    const style = getComputedStyle(root), known = {};
    return (name) => (known[name] ??= style.getPropertyValue("--" + name).trim());
  }

  function legendHeight(spec, inner) {
    if (spec.layout.showlegend === false) return 0;
    const names = spec.data.filter((t) => t.showlegend !== false).map((t) => String(t.name || ""));
    if (!names.length) return 0;
    const widest = Math.max(...names.map((n) => n.length)) * 6.6 + 48;
    return ROW * Math.ceil(names.length / Math.max(1, Math.floor(inner / widest))) + 1;
  }

  // The same arrangement as report/panels.py: as many panels side by side as fit.
  function arrange(spec, width) {
    const layout = spec.layout, meta = layout.meta;
    layout.width = width;
    if (!meta) return;
    const start = meta.left ?? LEFT, gap = meta.gap ?? GAP_X, bottom = meta.bottom;
    const right = meta.right ?? (layout.coloraxis ? 58 : RIGHT);
    const inner = width - start - right;
    const fitting = Math.floor((inner + gap) / (meta.min_width + gap));
    let columns = Math.max(1, Math.min(meta.columns, fitting, meta.panels));
    while (meta.columns % columns && !meta.any_order) columns -= 1;
    const rows = Math.ceil(meta.panels / columns);
    const top = 30 + legendHeight(spec, inner);
    const panel = (inner - (columns - 1) * gap) / columns;
    const rowHeight = meta.row_height;
    const gapY = meta.gap_y ?? GAP_Y;
    const height = rows * rowHeight + (rows - 1) * gapY;
    for (let index = 0; index < meta.panels; index++) {
      const n = index ? index + 1 : "";
      const column = index % columns, row = Math.floor(index / columns);
      const left = (column * (panel + gap)) / inner;
      const upper = 1 - (row * (rowHeight + gapY)) / height;
      layout["xaxis" + n].domain = [left, Math.min(1, left + panel / inner)];
      layout["yaxis" + n].domain = [Math.max(0, upper - rowHeight / height), upper];
    }
    layout.margin = { l: start, r: right, t: top, b: bottom };
    layout.height = height + top + bottom;
  }

  async function draw(figure, width) {
    const first = figure.spec === null;
    const spec = paint(JSON.parse(figure.text), palette());
    arrange(spec, width || figure.div.clientWidth);
    if (spec.slider) openSlider(figure, spec.slider.labels);
    // With a constant revision plotly keeps the reader's zoom and what is switched off in the legend.
    spec.layout.uirevision = "keep";
    const data = pickFrame(figure, spec);
    if (!first) keepHidden(figure.div.data, data);
    figure.spec = spec;
    await (first ? Plotly.newPlot : Plotly.react)(figure.div, data, spec.layout, config);
    figure.div.style.minHeight = "";
    openLegend(figure.div);
  }

  // A figure with a slider holds the traces of its last epoch, and of each other epoch what differs from them.
  function pickFrame(figure, spec) {
    const changes = spec.slider && spec.slider.frames[figure.slider.input.valueAsNumber];
    return changes ? spec.data.map((trace, i) => ({ ...trace, ...changes[i] })) : spec.data;
  }

  // The slider stays at the epoch the reader chose; at the last one it follows a live run.
  function openSlider(figure, labels) {
    figure.slider ??= makeSlider(figure);
    const slider = figure.slider, last = labels.length - 1;
    const at = slider.chosen === null ? last : labels.indexOf(slider.chosen);
    slider.labels = labels;
    slider.input.max = last;
    slider.input.value = at < 0 ? last : at;
    showEpoch(slider);
  }

  function makeSlider(figure) {
    const label = document.createElement("label"), name = document.createElement("span");
    const input = document.createElement("input"), output = document.createElement("output");
    name.textContent = "Epoch";
    input.type = "range";
    input.min = 0;
    label.className = "slider";
    label.append(name, input, output);
    figure.div.before(label);
    const slider = { element: label, input: input, output: output, labels: [], chosen: null };
    let waiting = false;
    input.addEventListener("input", () => {
      const at = input.valueAsNumber;
      slider.chosen = at === slider.labels.length - 1 ? null : slider.labels[at];
      showEpoch(slider);
      if (waiting) return;
      waiting = true;
      chain = chain.then(async () => {
        waiting = false;
        const data = pickFrame(figure, figure.spec);
        keepHidden(figure.div.data, data);
        await Plotly.react(figure.div, data, figure.spec.layout, config);
        openLegend(figure.div);
      });
    });
    return slider;
  }

  function showEpoch(slider) {
    slider.output.textContent = slider.labels[slider.input.valueAsNumber];
    slider.input.setAttribute("aria-valuetext", "epoch " + slider.output.textContent);
  }

  // What was switched off from the keyboard stays off; plotly itself remembers clicks alone.
  function keepHidden(before, after) {
    const name = (trace) => [trace.name, trace.legendgroup, trace.xaxis, trace.type].join("|");
    const hidden = new Set(before.filter((trace) => trace.visible === "legendonly").map(name));
    for (const trace of after) if (hidden.has(name(trace))) trace.visible = "legendonly";
  }

  // Legend entries work from the keyboard too.
  function openLegend(div) {
    const groups = div.querySelectorAll(".legend .traces");
    groups.forEach((entry) => {
      const name = entry.querySelector(".legendtext");
      const toggle = entry.querySelector(".legendtoggle");
      if (!name || !toggle) return;
      toggle.setAttribute("tabindex", "0");
      toggle.setAttribute("role", "button");
      toggle.setAttribute("aria-label", "Show or hide " + name.textContent);
      toggle.onkeydown = (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        const text = name.getAttribute("data-unformatted") || name.textContent;
        const trace = div.data.find((t) => t.name === text && t.showlegend !== false);
        if (!trace) return;
        const hide = trace.visible !== "legendonly" ? "legendonly" : true;
        const same = div.data.map((t, i) => i).filter((i) => div.data[i] === trace || (trace.legendgroup && div.data[i].legendgroup === trace.legendgroup));
        Plotly.restyle(div, { visible: hide }, same).then(() => {
          openLegend(div);
          [...div.querySelectorAll(".legendtoggle")].find((t) => t.getAttribute("aria-label") === "Show or hide " + name.textContent)?.focus();
        });
      };
    });
  }

  const idle = () => new Promise((next) => (window.requestIdleCallback ? requestIdleCallback(next, { timeout: 200 }) : setTimeout(next, 0)));

  let chain = Promise.resolve();
  function redraw(width, which) {
    chain = chain.then(async () => {
      for (const figure of figures) if (figure.spec && (!which || which(figure))) await draw(figure, width);
    });
    return chain;
  }

  // The figure nearest to the window comes next, so that what the reader sees is drawn first.
  function nextFigure() {
    const middle = window.innerHeight / 2;
    let best = null, distance = Infinity;
    for (const figure of figures) {
      if (figure.spec || figure.failed) continue;
      // a section's box is known without laying out what is in it, which takes long for long tables
      const section = figure.div.closest("section").getBoundingClientRect();
      const visible = section.bottom > 0 && section.top < window.innerHeight;
      const box = visible ? figure.div.getBoundingClientRect() : section;
      const away = Math.abs((box.top + box.bottom) / 2 - middle);
      if (away < distance) { best = figure; distance = away; }
    }
    return best;
  }

  async function drawAll() {
    for (let figure = nextFigure(); figure; figure = nextFigure()) {
      try {
        await draw(figure);
        if (!performance.getEntriesByName("first-figure").length) performance.mark("first-figure");
      } catch (error) {
        figure.failed = true;
        figure.div.textContent = "This figure could not be drawn: " + error.message;
      }
      await idle();
    }
    root.dataset.ready = "true";
  }

  // One tab stop a table: Enter goes to its links, the arrow keys from link to link, Escape back.
  function openTables(within) {
    within.querySelectorAll(".scroll").forEach((region) => {
      region.onkeydown = (event) => {
        const links = [...region.querySelectorAll("a")];
        const at = links.indexOf(document.activeElement);
        if (document.activeElement === region && event.key === "Enter" && links.length) links[0].focus();
        else if (at >= 0 && event.key === "Escape") region.focus();
        else if (at >= 0 && (event.key === "ArrowRight" || event.key === "ArrowDown")) links[Math.min(at + 1, links.length - 1)].focus();
        else if (at >= 0 && (event.key === "ArrowLeft" || event.key === "ArrowUp")) links[Math.max(at - 1, 0)].focus();
        else return;
        event.preventDefault();
      };
    });
  }

  function openTarget() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const details = target && target.closest("details");
    if (details && !details.open) {
      details.open = true;
      target.scrollIntoView();
    }
  }

  function followContents() {
    const links = [...document.querySelectorAll(".contents a")];
    const parts = links.map((link) => document.getElementById(link.getAttribute("href").slice(1)));
    let waiting = false;
    function mark() {
      waiting = false;
      const bottom = window.innerHeight + window.scrollY >= document.body.scrollHeight - 2;
      let current = 0;
      parts.forEach((part, i) => { if (part && part.getBoundingClientRect().top < 120) current = i; });
      if (bottom) current = parts.length - 1;
      links.forEach((link, i) => (i === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    }
    addEventListener("scroll", () => { if (!waiting) { waiting = true; requestAnimationFrame(mark); } }, { passive: true });
    mark();
  }

  function isDark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  }
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!root.dataset.theme) redraw(); });

  let resizing = 0, width = window.innerWidth;
  addEventListener("resize", () => {
    if (window.innerWidth === width) return;
    width = window.innerWidth;
    clearTimeout(resizing);
    resizing = setTimeout(() => redraw(), 150);
  });
  // Printing does not wait for promises; a relayout to the width of the sheet is applied at once.
  addEventListener("beforeprint", () => redrawForPrint(960));
  addEventListener("afterprint", () => redraw());
  function redrawForPrint(sheet) {
    const theme = root.dataset.theme;
    root.dataset.theme = "light";
    for (const figure of figures) if (figure.spec) draw(figure, sheet);
    if (theme) root.dataset.theme = theme; else delete root.dataset.theme;
  }
  addEventListener("hashchange", openTarget);

  // A live page asks for what has changed: parts as HTML, figures as JSON. Nothing is loaded again.
  let state = root.dataset.live;
  async function follow() {
    const told = document.getElementById("live");
    try {
      const now = await (await fetch("state", { cache: "no-store" })).text();
      if (now !== state) {
        const update = await (await fetch("update?since=" + encodeURIComponent(state), { cache: "no-store" })).json();
        if (update.main) replaceMain(update);
        else Object.entries(update.parts).forEach(([name, html]) => replacePart(name, html));
        for (const figure of figures) if (update.figures[figure.id]) figure.text = JSON.stringify(update.figures[figure.id]);
        state = update.state;
        root.dataset.live = state;
        await redraw(undefined, (figure) => update.figures[figure.id]);
        await drawAll();
      }
      told.textContent = "up to date, " + new Date().toLocaleTimeString();
    } catch (error) {
      told.textContent = "the server does not answer";
    }
    setTimeout(follow, 2000);
  }

  function replacePart(name, html) {
    const part = document.querySelector('[data-part="' + name + '"]');
    if (!part) return;
    const open = [...part.querySelectorAll("details")].map((d) => d.open);
    const scrolled = [...part.querySelectorAll(".scroll")].map((s) => [s.scrollLeft, s.scrollTop]);
    part.innerHTML = html;
    part.querySelectorAll("details").forEach((d, i) => { if (i < open.length) d.open = open[i]; });
    part.querySelectorAll(".scroll").forEach((s, i) => { if (scrolled[i]) [s.scrollLeft, s.scrollTop] = scrolled[i]; });
    openTables(part);
  }

  // The page has new sections: figures that are there already keep their element, and with it zoom and legend.
  function replaceMain(update) {
    const main = document.getElementById("main");
    const before = new Map(figures.map((figure) => [figure.id, figure]));
    const fresh = document.createElement("template");
    fresh.innerHTML = update.main;
    const collected = collectFigures(fresh.content).map((figure) => {
      const old = before.get(figure.id);
      if (!old) return figure;
      figure.div.replaceWith(...(old.slider ? [old.slider.element, old.div] : [old.div]));
      return old;
    });
    main.replaceChildren(fresh.content);
    document.querySelector(".contents").innerHTML = update.contents;
    replacePart("statuses", update.statuses);
    figures = collected;
    openTables(main);
    followContents();
  }
  if (state) setTimeout(follow, 1000);

  openTarget();
  openTables(document);
  followContents();
  requestAnimationFrame(() => setTimeout(drawAll, 0));
})();
