"use strict";
(function () {
  const root = document.documentElement;
  const GAP_X = 62, GAP_Y = 80, LEFT = 54, RIGHT = 24, ROW = 29;
  const config = {
    displaylogo: false, responsive: false, showLink: false, plotlyServerURL: "", showSendToCloud: false, showEditInChartStudio: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "sendDataToCloud", "editInChartStudio", "autoScale2d", "zoomIn2d", "zoomOut2d"],
    toImageButtonOptions: { format: "svg", filename: "ncollapse" },
  };
  const figures = [...document.querySelectorAll("[data-plot]")].map((div) => ({
    div: div,
    text: div.parentElement.querySelector('script[type="application/json"]').textContent,
    spec: null,
  }));

  // Colours of ink and paper are tokens in the specifications; the theme fills them in.
  function paint(value, colours) {
    if (typeof value === "string") return value.startsWith("var:") ? colours[value.slice(4)] : value;
    if (Array.isArray(value)) return typeof value[value.length - 1] === "number" ? value : value.map((item) => paint(item, colours));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, item]) => [key, paint(item, colours)]));
    }
    return value;
  }

  function palette() {
    const style = getComputedStyle(root);
    const names = ["ink", "faint", "paper", "grid", "veil"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue("--" + name).trim()]));
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
    const right = layout.coloraxis ? 58 : RIGHT;
    const inner = width - start - right;
    const fitting = Math.floor((inner + gap) / (meta.min_width + gap));
    let columns = Math.max(1, Math.min(meta.columns, fitting, meta.panels));
    while (meta.columns % columns) columns -= 1;
    if (meta.paired && columns < 3) columns = 2;
    const rows = Math.ceil(meta.panels / columns);
    const top = 30 + legendHeight(spec, inner);
    const panel = (inner - (columns - 1) * gap) / columns;
    const rowHeight = meta.paired ? Math.min(meta.row_height, panel) : meta.row_height;
    const gapY = meta.paired ? 40 : meta.gap_y ?? GAP_Y;
    const height = rows * rowHeight + (rows - 1) * gapY;
    for (let index = 0; index < meta.panels; index++) {
      const n = index ? index + 1 : "";
      const across = meta.paired && columns === 3;
      const column = across ? Math.floor(index / 2) : index % columns;
      const row = across ? index % 2 : Math.floor(index / columns);
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
    if (!first) {
      // What the reader has switched off stays off.
      figure.spec.data.forEach((trace, i) => { if (trace.visible) spec.data[i].visible = trace.visible; });
    }
    figure.spec = spec;
    await (first ? Plotly.newPlot : Plotly.react)(figure.div, spec.data, spec.layout, config);
    figure.div.style.minHeight = "";
    openLegend(figure.div);
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
  function redraw(width) {
    chain = chain.then(async () => {
      for (const figure of figures) if (figure.spec) await draw(figure, width);
    });
    return chain;
  }

  async function drawAll() {
    for (const figure of figures) {
      try {
        await draw(figure);
        if (figure === figures[0]) performance.mark("first-figure");
      } catch (error) {
        figure.div.textContent = "This figure could not be drawn: " + error.message;
      }
      await idle();
    }
    root.dataset.ready = "true";
  }

  function openTarget() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
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

  const live = root.dataset.live;
  if (live) {
    try {
      const at = sessionStorage.getItem("ncollapse-scroll");
      if (at) scrollTo({ top: Number(at), behavior: "instant" });
    } catch (error) { /* storage may be off */ }
    setInterval(async () => {
      try {
        const state = await (await fetch("state", { cache: "no-store" })).text();
        if (state === live) return;
        try { sessionStorage.setItem("ncollapse-scroll", String(scrollY)); } catch (error) { /* storage may be off */ }
        location.reload();
      } catch (error) { /* the server has gone; the page stays */ }
    }, 2000);
  }

  openTarget();
  followContents();
  requestAnimationFrame(() => setTimeout(drawAll, 0));
})();
