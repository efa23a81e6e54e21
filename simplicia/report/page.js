"use strict";
// Names come from data and may hold anything: they are set as text, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

function element(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}
const make = (tag, attributes = {}, ...children) => element(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  element(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const short = (value) => String(Number(value.toPrecision(4)));
const exact = (value, words = short) => (value === null ? "–" : make("span", { "data-value": value }, words(value)));

// Theme: as the system has it, until the button is pressed.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

// Charts are drawn already; this reads out the values at the place a reader points at.
function chart(figure) {
  const svg = figure.querySelector(":scope > svg");
  const cursor = svg.querySelector(".cursor");
  const output = figure.querySelector(".readout");
  const { x: unit, y: measure, top, bottom, series } = DATA.charts[figure.dataset.chart];
  const places = [...new Set(series.flatMap((line) => line.px))].sort((a, b) => a - b);
  const nearest = (list, px) => list.reduce((best, p, i) => (Math.abs(p - px) < Math.abs(list[best] - px) ? i : best), 0);
  let at = -1;

  function show(index) {
    if (!places.length) return;
    at = Math.max(0, Math.min(places.length - 1, index));
    const px = places[at];
    cursor.replaceChildren(draw("path", { d: `M${px},${top}V${bottom}` }));
    output.replaceChildren();
    for (const line of series) {
      const i = nearest(line.px, px);
      if (!line.px.length || Math.abs(line.px[i] - px) > 2) continue;
      if (!output.children.length) output.append(make("span", {}, `${unit}: `, exact(line.x[i])));
      const name = series.length > 1 ? `${line.name}: ` : `${measure}: `;
      output.append(make("span", { class: line.class }, make("i"), name, exact(line.y[i])));
      cursor.append(draw("circle", { class: line.class, cx: line.px[i], cy: line.py[i], r: 4 }));
    }
  }
  function hide() {
    at = -1;
    cursor.replaceChildren();
    output.replaceChildren();
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(places, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: places.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(move);
  });
  figure.querySelector(".numbers").addEventListener("toggle", (event) => {
    if (event.target.childElementCount > 1) return; // made once, when first asked for
    const all = [...new Set(series.flatMap((line) => line.x))].sort((a, b) => a - b);
    const value = series.map((line) => new Map(line.x.map((x, i) => [x, line.y[i]])));
    const head = make("tr", {}, make("th", {}, unit), ...series.map((line) => make("th", {}, line.name)));
    const rows = all.map((x) => {
      const cells = value.map((y) => make("td", {}, y.has(x) ? exact(y.get(x)) : "–"));
      return make("tr", {}, make("th", { scope: "row" }, exact(x)), ...cells);
    });
    event.target.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  });
}

// A picture, cut from its sheet.
function thumb(run, index, size) {
  const picture = make("span", { class: "thumb", role: "img" });
  picture.style.width = picture.style.height = `${size}px`;
  const place = run.images[index];
  const words = [];
  if (place) {
    const [sheet, x, y, label, file] = place;
    const scale = size / run.tile;
    const [width, height] = run.sheets[sheet];
    picture.classList.add(`r${run.id}s${sheet}`);
    picture.style.backgroundSize = `${width * scale}px ${height * scale}px`;
    picture.style.backgroundPosition = `${-x * scale}px ${-y * scale}px`;
    if (label !== null) words.push(run.classes[label]);
    if (file !== null) words.push(file);
  }
  words.push(`image ${index}`);
  picture.setAttribute("aria-label", words.join(", "));
  picture.title = words.join("\n");
  return picture;
}
const labelOf = (run, index) => run.images[index]?.[3] ?? null;

// Bars of how often a feature fires on each class.
function profile(run, feature, count, chosen, onClass) {
  const list = make("dl", { class: "profile" });
  const most = Math.max(1, ...feature.classes.map(([, n]) => n));
  for (const [index, n] of feature.classes.slice(0, count)) {
    const name = run.classes[index];
    const term = make("dt", { title: name });
    term.append(onClass ? link(name, () => onClass(index)) : name);
    if (chosen?.kind === "class" && chosen.index === index) term.classList.add("wanted");
    const share = make("div", { class: "share" });
    share.style.width = `${(100 * n) / most}%`;
    list.append(term, make("dd", {}, share), make("dd", { class: "amount", "data-value": n }, String(n)));
  }
  return list;
}
function link(words, action) {
  const button = make("button", { type: "button", class: "plain-button" }, words);
  button.addEventListener("click", action);
  return button;
}
const nameOf = (run, feature) =>
  run.vertices ? `simplex ${Math.floor(feature / run.vertices)}, vertex ${feature % run.vertices}` : `feature ${feature}`;

// One run: graph, atlas and search share what is chosen, {kind: "class" | "feature", index} or null.
function explore(panel, run) {
  let chosen = null;
  const parts = [];
  const said = panel.querySelector(".said");
  const clear = panel.querySelector(".clear");
  const choose = (wanted) => {
    chosen = wanted;
    if (said) said.textContent = !chosen ? "" : chosen.kind === "class" ? run.classes[chosen.index] : `feature ${chosen.index}`;
    if (clear) clear.hidden = !chosen;
    for (const part of parts) part.show(chosen);
  };
  const say = (words) => (said.textContent = words);
  if (panel.querySelector(".graph")) parts.push(graph(panel, run, choose, say));
  if (panel.querySelector(".atlas")) parts.push(atlas(panel, run, choose));
  if (panel.querySelector(".search")) search(panel, run, choose);
  clear?.addEventListener("click", () => choose(null));
  if (panel.querySelector(".examples")) examples(panel, run);
  choose(null);
}

function graph(panel, run, choose, say) {
  const svg = panel.querySelector(".graph");
  const layers = panel.querySelector(".layer");
  const sizes = panel.querySelector(".k");
  const narrow = svg.clientWidth > 0 && svg.clientWidth < 560;
  const [width, height] = narrow ? [520, 640] : [900, 640];
  let nodes = [], edges = [], heat = 0, rounds = 0, running = false, fit = null, moved = false, pointed = null, chosen = null, dragged = null, near = [];
  const lines = draw("path", { class: "edges" });
  const lit = draw("path", { class: "lit" });
  const veil = draw("rect", { class: "veil", width, height });
  const front = draw("g", { class: "front" }); // what stands out is drawn again, in front of a veil over all else
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.aspectRatio = `${width} / ${height}`;

  function load() {
    const found = run.graphs.find((g) => g.layer === layers.value && g.k === Number(sizes.value));
    const at = new Map();
    const node = (kind, index) => {
      const key = `${kind} ${index}`;
      if (!at.has(key)) at.set(key, { kind, index, near: new Set(), x: 0, y: 0 });
      return at.get(key);
    };
    edges = found.edges.map(([c, f, weight]) => {
      const pair = [node("class", c), node("feature", f), weight];
      pair[0].near.add(pair[1]);
      pair[1].near.add(pair[0]);
      return pair;
    });
    nodes = [...at.values()];
    nodes.forEach((n, i) => {
      const turn = i * 2.39996; // a sunflower's spiral: spread out, and the same each time
      n.x = Math.sqrt(i + 1) * 24 * Math.cos(turn);
      n.y = Math.sqrt(i + 1) * 24 * Math.sin(turn);
      n.mark = mark(n);
    });
    nodes.sort((a, b) => (a.kind < b.kind) - (a.kind > b.kind)); // classes are drawn over features
    svg.replaceChildren(lines, ...nodes.map((n) => n.mark), veil, front);
    pointed = null;
    moved = false;
    near = [];
    svg.classList.toggle("dense", nodes.length > 250);
    listComponents(found);
    heat = rounds = Math.max(60, Math.min(300, Math.round(8e7 / nodes.length ** 2))); // seconds at the most
    start();
    light();
  }

  function shape(n) {
    const group = draw("g", { class: n.kind });
    const name = n.kind === "class" ? run.classes[n.index] : `feature ${n.index}`;
    group.append(draw("circle", { r: n.kind === "class" ? 9 : 4.5 }));
    if (n.kind === "class" && run.superclass) {
      group.style.setProperty("--hue", hue(run.superclass[n.index]));
      group.append(draw("text", { class: "badge", dy: "0.35em" }, String(run.superclass[n.index] + 1)));
    } else group.classList.add("plain");
    group.append(draw("text", { class: "name", y: n.kind === "class" ? -13 : -8 }, name));
    return group;
  }
  function mark(n) {
    const group = shape(n);
    group.classList.add("node");
    Object.assign(group.dataset, { kind: n.kind, index: n.index });
    group.addEventListener("pointerenter", () => dragged || point(n));
    group.addEventListener("pointerleave", () => dragged || point(null));
    group.addEventListener("pointerdown", (event) => {
      dragged = { node: n, x: event.clientX, y: event.clientY, far: false };
      group.setPointerCapture(event.pointerId);
      point(n);
      event.preventDefault();
      svg.focus({ preventScroll: true });
    });
    group.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      if (Math.hypot(event.clientX - dragged.x, event.clientY - dragged.y) > 3) dragged.far = moved = true;
      if (!dragged.far) return;
      const box = svg.getBoundingClientRect();
      n.x = (((event.clientX - box.left) / box.width) * width - fit.dx) / fit.across;
      n.y = (((event.clientY - box.top) / box.height) * height - fit.dy) / fit.down;
      n.held = true;
      if (CALM.matches) paint();
      else (heat = Math.max(heat, 12)), start();
    });
    const drop = () => {
      if (dragged && !dragged.far) choose({ kind: n.kind, index: n.index });
      dragged = null;
    };
    group.addEventListener("pointerup", drop);
    group.addEventListener("pointercancel", () => (dragged = null));
    return group;
  }

  // Fruchterman and Reingold's forces, cooling for a bounded number of rounds, a few milliseconds a frame.
  function start() {
    if (running || !nodes.length) return;
    running = true;
    const frame = () => {
      const until = performance.now() + (CALM.matches ? 1000 : 10);
      while (heat > 0 && performance.now() < until) round();
      paint();
      running = heat > 0;
      if (running) requestAnimationFrame(frame);
      else svg.dataset.still = "true";
    };
    delete svg.dataset.still;
    requestAnimationFrame(frame);
  }
  function round() {
    const ideal = 46, ease = Math.max(1, edges.length / nodes.length), step = moved ? 3 : Math.max(1, (40 * heat) / rounds);
    for (const n of nodes) (n.fx = -n.x * 0.35), (n.fy = -n.y * 0.5); // towards the middle, so that parts stay near
    for (let i = 0; i < nodes.length; i++) {
      const a = nodes[i];
      for (let j = i + 1; j < nodes.length; j++) {
        const b = nodes[j], x = a.x - b.x, y = a.y - b.y, d = x * x + y * y + 0.01, push = (ideal * ideal) / d;
        (a.fx += x * push), (a.fy += y * push), (b.fx -= x * push), (b.fy -= y * push);
      }
    }
    for (const [a, b] of edges) {
      const x = a.x - b.x, y = a.y - b.y, pull = Math.hypot(x, y) / ideal / ease;
      (a.fx -= x * pull), (a.fy -= y * pull), (b.fx += x * pull), (b.fy += y * pull);
    }
    for (const n of nodes) {
      const d = Math.hypot(n.fx, n.fy) || 1, by = Math.min(d, step) / d;
      if (!n.held) (n.x += n.fx * by), (n.y += n.fy * by);
    }
    heat--;
  }
  function paint() {
    if (!moved || !fit) { // the drawing fills its frame, until somebody arranges it
      const xs = nodes.map((n) => n.x), ys = nodes.map((n) => n.y);
      const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
      const across = Math.min((width - 110) / (right - left || 1), 3);
      const down = Math.min((height - 70) / (bottom - top || 1), 3);
      fit = { across, down, dx: width / 2 - (across * (left + right)) / 2, dy: height / 2 + 6 - (down * (top + bottom)) / 2 };
    }
    for (const n of nodes) {
      n.px = n.x * fit.across + fit.dx;
      n.py = n.y * fit.down + fit.dy;
      n.mark.setAttribute("transform", `translate(${n.px.toFixed(1)} ${n.py.toFixed(1)})`);
    }
    const taken = [];
    for (const n of nodes.filter((n) => n.kind === "class")) { // a name that would hide another is left to the pointer
      const half = (narrow ? 4.2 : 3.3) * (run.classes[n.index].length + 1);
      const crowded = taken.some(([x, y, other]) => Math.abs(x - n.px) < half + other && Math.abs(y - n.py) < 13);
      n.mark.classList.toggle("crowded", crowded);
      if (!crowded) taken.push([n.px, n.py, half]);
    }
    lines.setAttribute("d", path(edges));
    light();
  }
  const path = (some) => some.map(([a, b]) => `M${a.px.toFixed(1)},${a.py.toFixed(1)}L${b.px.toFixed(1)},${b.py.toFixed(1)}`).join("");

  // What is pointed at and its neighbours stand out; else what is chosen.
  function light() {
    const focus = pointed ?? nodes.find((n) => n.kind === chosen?.kind && n.index === chosen.index) ?? null;
    for (const n of near) n.mark.classList.remove("near", "chosen");
    // of a class its features, and the classes that share them
    const spokes = focus?.px === undefined ? [] : focus.kind === "class" ? [...focus.near] : [focus];
    near = [...new Set([...spokes, ...spokes.flatMap((feature) => [...feature.near])])];
    svg.classList.toggle("pointing", near.length > 0);
    front.replaceChildren();
    if (!near.length) return;
    lit.setAttribute("d", path(spokes.flatMap((feature) => [...feature.near].map((other) => [feature, other]))));
    front.append(lit);
    for (const n of near) {
      const copy = shape(n);
      copy.setAttribute("transform", n.mark.getAttribute("transform"));
      copy.classList.toggle("strong", n === focus);
      front.append(copy);
      n.mark.classList.add("near");
      n.mark.classList.toggle("chosen", n.kind === chosen?.kind && n.index === chosen.index);
    }
  }
  function point(n) {
    pointed = n;
    light();
  }

  svg.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") {
      point(null);
      choose(null);
    }
    if (event.key === "Enter" && pointed) choose({ kind: pointed.kind, index: pointed.index });
    if (!way || !nodes.length) return;
    event.preventDefault();
    const from = pointed ?? nodes.find((n) => n.kind === chosen?.kind && n.index === chosen.index);
    point(from ? towards(from, way) : nodes.find((n) => n.kind === "class"));
    const name = (n) => (n.kind === "class" ? run.classes[n.index] : `feature ${n.index}`);
    say(`${name(pointed)}: ${[...pointed.near].map(name).join(", ")}`);
  });
  function towards(from, [x, y]) {
    let best = from, least = Infinity;
    for (const n of nodes) {
      const along = (n.px - from.px) * x + (n.py - from.py) * y;
      const aside = Math.abs((n.px - from.px) * y) + Math.abs((n.py - from.py) * x);
      if (along > 0.5 && along + 2 * aside < least) (best = n), (least = along + 2 * aside);
    }
    return best;
  }
  svg.addEventListener("blur", () => point(null));

  function listComponents(found) {
    const names = (indices) => indices.map((i) => {
      const button = link(run.classes[i], () => choose({ kind: "class", index: i }));
      button.dataset.class = i;
      return button;
    });
    const list = panel.querySelector(".parts");
    list.replaceChildren();
    for (const part of found.components) {
      const features = `${part.features.length} feature${part.features.length === 1 ? "" : "s"}`;
      list.append(make("h4", {}, `${part.classes.length} classes, ${features}`), make("p", {}, ...names(part.classes)));
    }
    if (found.isolated.length) list.append(make("h4", {}, "share no feature"), make("p", {}, ...names(found.isolated)));
  }

  const label = (layer) => run.layers[layer] ?? layer;
  for (const layer of new Set(run.graphs.map((g) => g.layer))) layers.append(make("option", { value: layer }, label(layer)));
  function offer() {
    const before = sizes.value || "5";
    const ks = run.graphs.filter((g) => g.layer === layers.value).map((g) => g.k);
    sizes.replaceChildren(...ks.map((k) => make("option", { value: k }, String(k))));
    sizes.value = ks.includes(Number(before)) ? before : ks[0];
  }
  layers.addEventListener("change", () => (offer(), load()));
  sizes.addEventListener("change", load);
  for (const [i, name] of run.superclass ? run.superclasses.entries() : []) {
    const badge = make("b", {}, String(i + 1));
    badge.style.setProperty("--hue", hue(i));
    panel.querySelector(".groups").append(make("li", {}, badge, name));
  }
  offer();
  load();
  return {
    show(wanted) {
      chosen = wanted;
      pointed = null;
      light();
      for (const button of panel.querySelectorAll("[data-class]"))
        button.toggleAttribute("aria-current", wanted?.kind === "class" && Number(button.dataset.class) === wanted.index);
    },
  };
}
const hue = (group) => (group * 137.5) % 360; // neighbours in the list lie far apart on the circle

function atlas(panel, run, choose) {
  const PAGE = 24;
  const list = panel.querySelector(".atlas");
  const more = panel.querySelector(".more");
  const filter = panel.querySelector(".filter");
  const { features, images, ranked_by: by } = run.atlas;
  let rows = features, shown = 0, chosen = null;

  const share = (feature, index) => (feature.classes.find(([c]) => c === index)?.[1] ?? 0) / Math.max(1, feature.fired);
  const facts = (feature) =>
    make("span", { class: "score" }, `feature ${feature.feature} · ${by} `, exact(feature.score),
      " · fires on ", exact(feature.fired, (n) => n.toLocaleString("en")), ` of ${images.toLocaleString("en")} images`);
  function card(feature, at) {
    const button = make("button", { type: "button" }, make("h4", {}, nameOf(run, feature.feature)), facts(feature));
    button.append(make("div", { class: "strip" }, ...feature.images.map((i) => thumb(run, i, 50))));
    button.append(profile(run, feature, 4, chosen));
    button.addEventListener("click", () => large(run, rows, at, facts, choose));
    return make("li", { class: "card", "data-feature": feature.feature }, button);
  }
  function add() {
    const next = rows.slice(shown, shown + PAGE);
    list.append(...next.map((feature, i) => card(feature, shown + i)));
    shown += next.length;
    more.hidden = shown >= rows.length;
  }
  more.addEventListener("click", add);
  return {
    show(wanted) {
      chosen = wanted;
      rows = features;
      filter.textContent = `${features.length} features.`;
      if (wanted?.kind === "class") {
        rows = features.filter((f) => share(f, wanted.index) > 0);
        rows.sort((a, b) => share(b, wanted.index) - share(a, wanted.index));
        filter.textContent = `${rows.length} of ${features.length} features have ${run.classes[wanted.index]} among the classes they fire on most; those with the largest share of it come first.`;
      } else if (wanted) {
        rows = features.filter((f) => f.feature === wanted.index);
        filter.textContent = rows.length
          ? `Feature ${wanted.index} alone.`
          : `Feature ${wanted.index} is not among the ${features.length} that are described here.`;
      }
      shown = 0;
      list.replaceChildren();
      add();
    },
  };
}

// A feature's images, large, in a dialog.
function large(run, rows, at, facts, choose) {
  const dialog = document.querySelector(".large");
  const body = dialog.querySelector(".large-body");
  const turn = (to) => {
    at = (to + rows.length) % rows.length;
    const feature = rows[at];
    dialog.querySelector("h2").textContent = nameOf(run, feature.feature);
    const pictures = feature.images.map((index, i) => {
      const label = labelOf(run, index);
      const words = label === null ? run.images[index]?.[4] ?? `image ${index}` : run.classes[label];
      const box = make("span", { class: "shown" }, thumb(run, index, 128), make("span", { title: words }, words),
        make("span", {}, "probability ", exact(feature.probabilities[i])));
      box.style.width = "128px";
      return box;
    });
    const toClass = (index) => (dialog.close(), choose({ kind: "class", index }));
    body.replaceChildren(facts(feature), make("div", { class: "images" }, ...pictures), profile(run, feature, 8, null, toClass));
    if (feature.superclasses.length) {
      const groups = feature.superclasses.map(([g, n]) => `${run.superclasses[g]} ${n}`).join(", ");
      body.append(make("p", { class: "caption" }, `By superclass: ${groups}.`));
    }
  };
  dialog.querySelector(".previous").onclick = () => turn(at - 1);
  dialog.querySelector(".next").onclick = () => turn(at + 1);
  dialog.querySelector(".close").onclick = () => dialog.close();
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.onkeydown = (event) => {
    if (event.key === "ArrowLeft") turn(at - 1);
    if (event.key === "ArrowRight") turn(at + 1);
  };
  turn(at);
  dialog.showModal();
}

function search(panel, run, choose) {
  const form = panel.querySelector(".search");
  const input = form.querySelector("input");
  const list = form.querySelector(".found");
  const features = new Set(run.graphs.flatMap((g) => (g.layer === "sem" || !run.vertices ? g.edges.map((e) => e[1]) : [])));
  for (const f of run.atlas?.features ?? []) features.add(f.feature);
  const all = run.classes.map((name, index) => ({ kind: "class", index, words: name }));
  if (!run.superclass && !run.counts) all.length = 0; // without labels there are no classes to find
  for (const f of [...features].sort((a, b) => a - b)) all.push({ kind: "feature", index: f, words: run.vertices ? `feature ${f}: ${nameOf(run, f)}` : `feature ${f}` });
  let hits = [], active = 0;

  function look() {
    const wanted = input.value.trim().toLowerCase();
    const rank = ({ kind, index, words }) => {
      const at = words.toLowerCase().indexOf(wanted);
      if (words.toLowerCase() === wanted || (kind === "feature" && String(index) === wanted)) return 0;
      return at < 0 ? 3 : at > 0 ? 2 : 1;
    };
    hits = wanted ? all.map((one) => [rank(one), one]).filter(([r]) => r < 3).sort((a, b) => a[0] - b[0]).slice(0, 10).map(([, one]) => one) : [];
    active = 0;
    list.replaceChildren(...hits.map((one, i) => {
      const option = make("li", { role: "option", id: `${list.id}-${i}` }, one.words);
      option.addEventListener("pointerdown", (event) => (event.preventDefault(), take(one)));
      return option;
    }));
    if (wanted && !hits.length) list.append(make("li", {}, "nothing of that name"));
    show(wanted !== "");
  }
  function show(open) {
    list.hidden = !open;
    input.setAttribute("aria-expanded", open);
    [...list.children].forEach((option, i) => option.setAttribute("aria-selected", hits.length > 0 && i === active));
    if (open && hits.length) input.setAttribute("aria-activedescendant", `${list.id}-${active}`);
    else input.removeAttribute("aria-activedescendant");
  }
  function take(one) {
    input.value = "";
    show(false);
    choose({ kind: one.kind, index: one.index });
    (panel.querySelector(".graph") ?? panel.querySelector(".atlas button"))?.focus();
  }
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "false");
  input.addEventListener("input", look);
  input.addEventListener("blur", () => show(false));
  input.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by && hits.length) {
      event.preventDefault();
      active = (active + by + hits.length) % hits.length;
      show(true);
    }
    if (event.key === "Escape") (input.value = ""), look(), choose(null);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (hits.length && input.value) take(hits[active]);
  });
}

function examples(panel, run) {
  const box = panel.querySelector(".examples");
  const queries = Map.groupBy(run.examples, (row) => row.query);
  const size = innerWidth < 760 ? 50 : 62;
  for (const [query, rows] of queries) {
    const wanted = labelOf(run, query);
    const shown = (index, words, same, extra = "") => {
      const caption = make("span", { class: same ? "same" : "" }, ...words);
      const picture = make("span", { class: `shown ${extra}` }, thumb(run, index, size), caption);
      picture.style.width = `${size}px`;
      return picture;
    };
    const lines = rows.map((row) => {
      const near = row.neighbours.map((index, i) => {
        const same = wanted !== null && labelOf(run, index) === wanted;
        return shown(index, [same ? "✓ " : "", exact(row.similarity[i], (s) => s.toFixed(2))], same);
      });
      const first = shown(query, [wanted === null ? "query" : run.classes[wanted]], false, "query");
      return make("div", { class: "row" }, make("span", {}, `by ${row.layer}`), make("div", { class: "images" }, first, ...near));
    });
    box.append(make("div", { class: "example" }, ...lines));
  }
}

// Runs side by side: a tab each; a panel is filled when it is first seen.
const panels = [...document.querySelectorAll(".panel")];
const tabs = [...document.querySelectorAll("[role=tab]")];
const filled = new Set();
function open(index) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", i === index);
    tab.tabIndex = i === index ? 0 : -1;
  });
  panels.forEach((panel, i) => (panel.hidden = i !== index));
  if (!filled.has(index)) {
    filled.add(index);
    explore(panels[index], { ...DATA.runs[index], id: index });
  }
}
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => open(i));
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const to = (i + by + tabs.length) % tabs.length;
    open(to);
    tabs[to].focus();
  });
});
document.querySelectorAll("figure[data-chart]").forEach(chart);
open(0);
