// The waterfall's levels of detail, its search, and the ways to zoom. Texts are only ever set as text, never as markup.
"use strict";
const otelWorker = (() => {
  const told = JSON.parse(document.getElementById("otel-worker-data").textContent);
  const types = { B: Uint8Array, H: Uint16Array, I: Uint32Array, d: Float64Array };
  const column = ([code, base64]) => {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    return new types[code](bytes.buffer);
  };
  const columns = (named) => Object.fromEntries(Object.entries(named).map(([name, found]) => [name, column(found)]));
  const bars = columns(told.bars);
  const items = columns(told.items);
  const { strings, kinds, lanes, workers, labels, whats, seconds: extent } = told;
  const kindCount = kinds.length;
  const WIDTHS = [1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]; // pixels: narrower bars of a lane are drawn together
  const MOST_BARS = 5000; // one by one, and as many together: what a browser draws at once without a wait
  const BELOW = 0.2; // of a lane: names stand above their bars
  const MOST_NAMES = 400;
  let hits = null; // items that the search found
  let plot = null;
  let pending = false;

  const seconds = (value) =>
    value >= 0.9995 ? `${value.toFixed(3)} s` : value >= 0.0009995 ? `${(value * 1e3).toFixed(1)} ms` : `${(value * 1e6).toFixed(0)} µs`;
  const size = (bytes) => {
    const units = ["B", "kB", "MB", "GB", "TB"];
    let unit = 0;
    for (; bytes >= 1000 && unit < units.length - 1; unit++) bytes /= 1000;
    return `${bytes.toFixed(unit ? 1 : 0)} ${units[unit]}`;
  };
  const who = (address) => workers[address] || address;
  const title = (item) => {
    const key = strings[items.key[item]];
    const what = whats[items.what[item]];
    const peer = who(strings[items.peer[item]]);
    const with_ = what === "fetch" && peer ? ` from ${peer}` : what === "serves" && peer ? ` to ${peer}` : "";
    const bytes = items.nbytes[item] ? `, ${size(items.nbytes[item])}` : "";
    return what === "others" ? strings[items.name[item]] : `${what}${with_}: ${key}${bytes}`;
  };
  const empty = () => ({
    y: [], left: [], right: [], color: [], alpha: [], title: [], part: [], whole: [], times: [],
  });

  // One bar, or several of a lane that are too narrow, into the columns that are drawn.
  const add = (to, lane, left, right, kind, alpha, about) => {
    to.y.push(lane + BELOW);
    to.left.push(left);
    to.right.push(right);
    to.color.push(kinds[kind][0]);
    to.alpha.push(alpha);
    to.title.push(about.title);
    to.part.push(about.part);
    to.whole.push(about.whole);
    to.times.push(`${left.toFixed(4)} s to ${right.toFixed(4)} s`);
  };
  const exact = (to, i) => {
    const item = bars.item[i];
    const length = bars.end[i] - bars.start[i];
    add(to, bars.lane[i], bars.start[i], bars.end[i], bars.kind[i], !hits || hits[item] ? 1 : 0.15, {
      title: title(item),
      part: `${labels[bars.path[i]]}: ${seconds(length)}`,
      whole: `of ${seconds(items.end[item] - items.start[item])}`,
    });
  };

  // What is too narrow, by lane and cell of time: the activity with most of it gives the colour.
  const together = (to, bins, from, scale, cells) => {
    for (const lane of [...bins.keys()].sort((a, b) => a - b)) {
      const { sums, counts } = bins.get(lane);
      let run = null;
      const flush = () => {
        if (!run) return;
        add(to, lane, from + run.first / scale, from + run.last / scale, run.kind, (hits ? 0.15 : 1) * (0.4 + 0.6 * Math.min(1, run.covered / (run.last - run.first))), {
          title: `${run.count} short bars together; zoom in to see each`,
          part: `most of it: ${kinds[run.kind][1]}`,
          whole: "",
        });
        run = null;
      };
      for (let cell = 0; cell < cells; cell++) {
        if (!counts[cell]) { flush(); continue; }
        let kind = 0, covered = 0;
        for (let k = 0; k < kindCount; k++) {
          const value = sums[cell * kindCount + k];
          covered += value;
          if (value > sums[cell * kindCount + kind]) kind = k;
        }
        if (run && run.kind !== kind) flush();
        if (!run) run = { first: cell, kind, count: 0, covered: 0 };
        run.last = cell + 1;
        run.count += counts[cell];
        run.covered += covered;
      }
      flush();
    }
  };

  // The least width at which not too many bars are drawn one by one.
  const least = (from, to, scale) => {
    const counts = new Uint32Array(WIDTHS.length);
    for (let i = 0; i < bars.start.length; i++) {
      if (bars.end[i] < from || bars.start[i] > to) continue;
      const width = (bars.end[i] - bars.start[i]) * scale;
      let step = WIDTHS.length;
      while (step > 0 && width < WIDTHS[step - 1]) step--;
      if (step) counts[step - 1]++;
    }
    let total = 0, step = WIDTHS.length - 1;
    while (step > 0 && total + counts[step] + counts[step - 1] <= MOST_BARS) total += counts[step--];
    return WIDTHS[step];
  };

  const look = (from, to, pixels) => {
    const drawn = empty();
    const scale = pixels / (to - from);
    const width = least(from, to, scale);
    const cells = Math.max(50, Math.min(Math.round(pixels / Math.ceil(width)), Math.round((2 * MOST_BARS) / lanes.length)));
    const perCell = cells / (to - from);
    const bins = new Map();
    let small = 0, seen = 0;
    for (let i = 0; i < bars.start.length; i++) {
      const start = bars.start[i], end = bars.end[i];
      if (end < from || start > to) continue;
      seen++;
      if ((end - start) * scale >= width || (hits && hits[bars.item[i]])) { exact(drawn, i); continue; }
      const lane = bars.lane[i];
      const cell = Math.min(cells - 1, Math.max(0, Math.floor((start - from) * perCell)));
      let bin = bins.get(lane);
      if (!bin) bins.set(lane, (bin = { sums: new Float32Array(cells * kindCount), counts: new Uint32Array(cells) }));
      bin.sums[cell * kindCount + bars.kind[i]] += Math.max((end - start) * perCell, 1e-6);
      bin.counts[cell]++;
      small++;
    }
    together(drawn, bins, from, perCell, cells);
    return { drawn, small, seen, width };
  };

  const names = (from, to, pixels) => {
    const found = { x: [], y: [], text: [], left: [], right: [], line: [] };
    const scale = pixels / (to - from);
    for (let item = 0; item < items.start.length && found.x.length < MOST_NAMES; item++) {
      const start = Math.max(from, items.start[item]), end = Math.min(to, items.end[item]);
      const room = Math.floor(((end - start) * scale - 4) / 6.2);
      if (end <= start || room < 4 || (hits && !hits[item])) continue;
      const what = whats[items.what[item]];
      const peer = who(strings[items.peer[item]]);
      const key = strings[items.key[item]] || strings[items.name[item]];
      const text = what === "fetch" && peer ? `${peer} → ${key}` : what === "serves" && peer ? `${key} → ${peer}` : key;
      found.x.push(start);
      found.y.push(items.lane[item] - 0.5);
      found.text.push(text.length > room ? `${text.slice(0, room - 1)}…` : text);
      found.left.push(items.start[item]);
      found.right.push(items.end[item]);
      found.line.push(items.lane[item] + BELOW);
    }
    return found;
  };

  const draw = () => {
    pending = false;
    const { start, end } = plot.x_range;
    if (!(end > start)) return;
    const pixels = Math.max(100, Math.round(plot.inner_width || 1000));
    const { drawn, small, seen, width } = look(start, end, pixels);
    const source = (name) => plot.document.get_model_by_name(name);
    source("bars").data = drawn;
    source("names").data = names(start, end, pixels);
    document.getElementById("detail").textContent =
      `${seconds(end - start)} in view, ${seen.toLocaleString("en")} bars.` +
      (small ? ` ${small.toLocaleString("en")} of them, narrower than ${width === 1 ? "a pixel" : `${width} pixels`} here, are drawn together in the colour of most of them; zoom in to see each.` : "");
  };
  const later = () => {
    if (plot && !pending) {
      pending = true;
      requestAnimationFrame(draw);
    }
  };

  const zoom = (start, end) => {
    const room = Math.max((end - start) * 0.04, 1e-6);
    plot.x_range.setv({ start: start - room, end: end + room });
  };
  const by = (factor, shift) => {
    const { start, end } = plot.x_range;
    const half = ((end - start) / 2) * factor, middle = (start + end) / 2 + shift * (end - start);
    plot.x_range.setv({ start: middle - half, end: middle + half });
  };
  const whole = () => plot.x_range.setv({ start: -0.01 * extent, end: 1.01 * extent });

  const has = (wanted) => {
    const matching = new Uint8Array(strings.length);
    strings.forEach((text, i) => { matching[i] = text.toLowerCase().includes(wanted) ? 1 : 0; });
    const found = new Uint8Array(items.start.length);
    for (let item = 0; item < found.length; item++) {
      const keys = told.keys[item] || [items.key[item]];
      if (keys.some((key) => matching[key])) found[item] = 1;
    }
    return found;
  };
  const search = (text) => {
    const wanted = text.trim().toLowerCase();
    hits = wanted ? has(wanted) : null;
    const list = document.getElementById("results");
    list.replaceChildren();
    if (hits) {
      const found = [...hits.keys()].filter((item) => hits[item]);
      found.sort((a, b) => items.end[b] - items.start[b] - (items.end[a] - items.start[a]));
      const line = document.createElement("li");
      line.textContent = found.length ? `${found.length.toLocaleString("en")} found${found.length > 30 ? ", the 30 longest:" : ":"}` : "Nothing drawn has such a key.";
      list.append(line, ...found.slice(0, 30).map(result));
    }
    later();
  };
  const result = (item) => {
    const line = document.createElement("li");
    const button = document.createElement("button");
    button.textContent = "show";
    button.addEventListener("click", () => show(items.start[item], items.end[item]));
    line.append(button, `${seconds(items.end[item] - items.start[item])}  ${who(lanes[items.lane[item]][0])}  ${title(item)}`);
    return line;
  };
  const show = (start, end) => {
    zoom(start, end);
    document.getElementById("waterfall").scrollIntoView({ block: "start" });
  };

  const begin = () => {
    plot = window.Bokeh && Bokeh.documents.length ? Bokeh.documents[0].get_model_by_name("waterfall") : null;
    if (!plot || !plot.inner_width) {
      requestAnimationFrame(begin);
      return;
    }
    plot.x_range.change.connect(later);
    plot.properties.inner_width.change.connect(later);
    const input = document.getElementById("search");
    let waiting = 0;
    input.addEventListener("input", () => {
      clearTimeout(waiting);
      waiting = setTimeout(() => search(input.value), 120);
    });
    const moves = { whole, in: () => by(0.5, 0), out: () => by(2, 0), left: () => by(1, -0.4), right: () => by(1, 0.4) };
    for (const [name, move] of Object.entries(moves)) document.getElementById(`zoom-${name}`).addEventListener("click", move);
    for (const button of document.querySelectorAll("button[data-start]"))
      button.addEventListener("click", () => show(Number(button.dataset.start), Number(button.dataset.end)));
    later();
    document.documentElement.dataset.ready = "yes";
  };
  requestAnimationFrame(begin);
  return { zoom, search, look, draw, items, bars, title, plot: () => plot };
})();
