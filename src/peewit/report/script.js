"use strict";
(function () {
  const drawings = JSON.parse(document.getElementById("drawings").textContent);
  const root = document.documentElement;
  const button = document.getElementById("theme");
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;

  function dark() {
    return root.dataset.theme ? root.dataset.theme === "dark" : system.matches;
  }

  /* The page's colours, for what figures draw in no colour of their own. */
  function themed(layout) {
    const style = getComputedStyle(root);
    const text = style.getPropertyValue("--text").trim();
    const grid = style.getPropertyValue("--grid").trim();
    const changes = {"font.color": text, "legend.font.color": text, "title.text": "",
      "hoverlabel.bgcolor": style.getPropertyValue("--panel").trim(), "hoverlabel.font.color": text,
      "hoverlabel.bordercolor": style.getPropertyValue("--line").trim()};
    for (const name of Object.keys(layout)) {
      if (/^[xy]axis\d*$/.test(name)) {
        for (const part of ["gridcolor", "zerolinecolor", "linecolor"]) changes[name + "." + part] = grid;
      }
    }
    (layout.updatemenus || []).forEach(function (_, place) { changes["updatemenus[" + place + "].font.color"] = text; });
    (layout.sliders || []).forEach(function (_, place) {
      changes["sliders[" + place + "].font.color"] = text;
      changes["sliders[" + place + "].currentvalue.font.color"] = text;
    });
    return changes;
  }

  function draw(chart) {
    if (chart.dataset.drawn) return Promise.resolve();
    chart.dataset.drawn = "yes";
    const drawing = drawings[Number(chart.dataset.drawing)];
    const layout = Object.assign({}, drawing.layout, {autosize: true});
    delete layout.width;
    if (layout.title) layout.margin = Object.assign({}, layout.margin, {t: Math.max(30, (layout.margin || {}).t - 46 || 30)});
    if (coarse) layout.dragmode = false; /* a finger scrolls the page */
    /* No button that sends a figure to a server, and few others: each is one more stop for keys. */
    const config = {responsive: true, displaylogo: false, displayModeBar: coarse ? false : "hover",
      showSendToCloud: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendDataToCloud"]};
    return Plotly.newPlot(chart, drawing.data, layout, config).then(function () {
      return Plotly.relayout(chart, themed(layout));
    }).then(function () { chart.dataset.drawn = "done"; });
  }

  function visible() {
    return Array.from(document.querySelectorAll(".chart")).filter(function (chart) {
      return !chart.closest(".variant").hidden;
    });
  }

  /* One after the other, so that the page can be read and scrolled meanwhile. */
  async function drawAll() {
    for (const chart of visible()) {
      try { await draw(chart); } catch (error) { console.error(error); }
      await new Promise(function (done) { setTimeout(done, 0); });
    }
    root.dataset.ready = "yes";
  }

  function recolour() {
    const on = dark();
    button.textContent = on ? "Light" : "Dark";
    button.setAttribute("aria-label", on ? "Switch to light colours" : "Switch to dark colours");
    document.querySelectorAll(".chart").forEach(function (chart) {
      if (chart.data) Plotly.relayout(chart, themed(chart.layout));
    });
  }

  button.addEventListener("click", function () {
    root.dataset.theme = dark() ? "light" : "dark";
    try { localStorage.setItem("peewit-theme", root.dataset.theme); } catch (error) { /* no storage here */ }
    recolour();
  });
  system.addEventListener("change", recolour);

  document.querySelectorAll("select[data-menu]").forEach(function (menu) {
    const variants = Array.from(menu.closest("figure").querySelectorAll(":scope > .variant"));
    function choose() {
      variants.forEach(function (variant, place) { variant.hidden = place !== Number(menu.value); });
      const chart = variants[Number(menu.value)].querySelector(".chart");
      if (!chart) return;
      draw(chart).then(function () { Plotly.Plots.resize(chart); Plotly.relayout(chart, themed(chart.layout)); });
    }
    menu.addEventListener("change", choose);
    if (menu.value !== menu.dataset.first) choose(); /* a browser may keep the choice over a reload */
  });

  const slider = document.getElementById("hand-over");
  if (slider) {
    const curve = JSON.parse(document.getElementById("curve").textContent);
    const text = document.getElementById("hand-over-text");
    const error = function (share) {
      let near = 0;
      curve.share.forEach(function (each, place) {
        if (Math.abs(each - share) < Math.abs(curve.share[near] - share)) near = place;
      });
      return curve.error[near];
    };
    const percent = function (value) { return (100 * value).toFixed(1) + " %"; };
    const tell = function () {
      const handed = Number(slider.value) / 100;
      text.textContent = handed === 0
        ? "Without help it is wrong in " + percent(error(1)) + " of the test inputs."
        : "A person decides " + slider.value + " %; of the other " + (100 - Number(slider.value)) + " %, it is wrong in "
          + percent(error(1 - handed)) + " (of all, without help: " + percent(error(1)) + ").";
    };
    slider.addEventListener("input", tell);
    tell();
  }

  /* Paper is white, and has nothing to open. */
  let chosen, folded = [];
  window.addEventListener("beforeprint", function () {
    chosen = root.dataset.theme;
    root.dataset.theme = "light";
    folded = Array.from(document.querySelectorAll("details:not([open])"));
    folded.forEach(function (each) { each.open = true; });
    recolour();
  });
  window.addEventListener("afterprint", function () {
    if (chosen) root.dataset.theme = chosen; else delete root.dataset.theme;
    folded.forEach(function (each) { each.open = false; });
    recolour();
  });
  recolour();
  drawAll();
})();
