"use strict";
// The graph of classes and the features they share: drag, hover, click; arrows, Enter, Escape.

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
  const front = draw("g", { class: "front" }); // highlighted nodes are drawn again, in front of a veil over the others
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.aspectRatio = `${width} / ${height}`;

  function load() {
    const current = run.graphs.find((g) => g.layer === layers.value && g.k === Number(sizes.value));
    const at = new Map();
    const node = (kind, index) => {
      const key = `${kind} ${index}`;
      if (!at.has(key)) at.set(key, { kind, index, near: new Set(), x: 0, y: 0 });
      return at.get(key);
    };
    edges = current.edges.map(([c, f]) => {
      const pair = [node("class", c), node("feature", f)];
      pair[0].near.add(pair[1]);
      pair[1].near.add(pair[0]);
      return pair;
    });
    nodes = [...at.values()];
    nodes.forEach((n, i) => {
      const turn = i * 2.39996; // a sunflower spiral: spread out and deterministic
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
    listComponents(current);
    heat = rounds = Math.max(60, Math.min(300, Math.round(8e7 / nodes.length ** 2))); // at most a few seconds
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
      if (dragged && !dragged.far) take(n);
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
    for (const n of nodes) (n.fx = -n.x * 0.35), (n.fy = -n.y * 0.5); // towards the middle, so that components stay close
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
    if (!moved || !fit) { // fit the frame until a node is dragged
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
    for (const n of nodes.filter((n) => n.kind === "class")) { // names that overlap show only on hover
      const half = (narrow ? 4.2 : 3.3) * (run.classes[n.index].length + 1);
      const crowded = taken.some(([x, y, other]) => Math.abs(x - n.px) < half + other && Math.abs(y - n.py) < 13);
      n.mark.classList.toggle("crowded", crowded);
      if (!crowded) taken.push([n.px, n.py, half]);
    }
    lines.setAttribute("d", path(edges));
    light();
  }
  const path = (some) => some.map(([a, b]) => `M${a.px.toFixed(1)},${a.py.toFixed(1)}L${b.px.toFixed(1)},${b.py.toFixed(1)}`).join("");

  // Highlight the hovered node, or else the selected one, with its neighbours.
  function light() {
    const focus = pointed ?? nodes.find(isChosen) ?? null;
    for (const n of near) n.mark.classList.remove("near", "chosen");
    // a class with its features and the classes that share them
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
      n.mark.classList.toggle("chosen", isChosen(n));
    }
  }
  function point(n) {
    pointed = n;
    light();
  }
  const take = (n) => choose({ kind: n.kind, index: n.index, space: spaceOf(layers.value) });
  const isChosen = (n) =>
    n.kind === chosen?.kind && n.index === chosen.index && (n.kind === "class" || chosen.space === spaceOf(layers.value));

  svg.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") {
      point(null);
      choose(null);
    }
    if (event.key === "Enter" && pointed) take(pointed);
    if (!way || !nodes.length) return;
    event.preventDefault();
    const from = pointed ?? nodes.find(isChosen);
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

  function listComponents({ components, isolated }) {
    const names = (indices) => indices.map((i) => {
      const button = link(run.classes[i], () => choose({ kind: "class", index: i }));
      button.dataset.class = i;
      return button;
    });
    const list = panel.querySelector(".parts");
    list.replaceChildren();
    for (const part of components) {
      const features = `${part.features.length} feature${part.features.length === 1 ? "" : "s"}`;
      list.append(make("h4", {}, `${part.classes.length} classes, ${features}`), make("p", {}, ...names(part.classes)));
    }
    if (isolated.length) list.append(make("h4", {}, "share no feature"), make("p", {}, ...names(isolated)));
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
const hue = (group) => (group * 137.5) % 360; // consecutive groups get distant hues
