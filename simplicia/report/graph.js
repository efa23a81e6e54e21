"use strict";
// The graph of classes and the features they share: drag, hover, click; arrows, Enter, Escape.

const hue = (group) => `--hue:${(group * 137.5) % 360}`; // consecutive groups get distant hues

function graph(panel, run, choose, say) {
  const svg = panel.querySelector(".graph");
  const layers = panel.querySelector(".layer");
  const sizes = panel.querySelector(".k");
  const { classes, superclass, superclasses } = run.data;
  const { graphs, curves } = run.coherence;
  const narrow = svg.clientWidth > 0 && svg.clientWidth < 560;
  const [width, height] = narrow ? [520, 640] : [900, 640];
  let nodes = [], edges = [], near = []; // near: the highlighted nodes
  let rounds = 0, heat = 0, running = false; // of the layout: heat counts down from rounds
  let fit = null, moved = false; // from the layout to pixels, until a node is moved
  let pointed = null, chosen = null, dragged = null;
  const lines = draw("path", { class: "edges" });
  const lit = draw("path", { class: "lit" });
  const veil = draw("rect", { class: "veil", width, height });
  const front = draw("g", { class: "front" }); // highlighted nodes are drawn again, in front of a veil over the others
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.style.aspectRatio = `${width} / ${height}`;

  function load() {
    const current = graphs.find((g) => g.layer === layers.value && g.k === Number(sizes.value));
    const at = new Map();
    const node = (kind, index) => {
      const key = `${kind} ${index}`;
      if (!at.has(key)) at.set(key, { kind, index, near: new Set() });
      return at.get(key);
    };
    edges = current.edges.map(([c, f]) => [node("class", c), node("feature", f)]);
    for (const [a, b] of edges) a.near.add(b), b.near.add(a);
    nodes = [...at.values()];
    nodes.forEach((n, i) => {
      const turn = i * 2.39996, radius = Math.sqrt(i + 1) * 24; // a sunflower spiral: spread out and deterministic
      Object.assign(n, { x: radius * Math.cos(turn), y: radius * Math.sin(turn), mark: mark(n) });
    });
    nodes.sort((a, b) => (a.kind < b.kind) - (a.kind > b.kind)); // classes are drawn over features
    svg.replaceChildren(lines, ...nodes.map((n) => n.mark), veil, front);
    svg.classList.toggle("dense", nodes.length > 250);
    listComponents(current);
    pointed = null;
    moved = false;
    near = [];
    heat = rounds = Math.max(60, Math.min(300, Math.round(8e7 / nodes.length ** 2))); // at most a few seconds
    start();
    light();
  }

  function shape(n) {
    const isClass = n.kind === "class";
    const group = draw("g", { class: n.kind }, draw("circle", { r: isClass ? 9 : 4.5 }));
    if (isClass && superclass) {
      group.setAttribute("style", hue(superclass[n.index]));
      group.append(draw("text", { class: "badge", dy: "0.35em" }, superclass[n.index] + 1));
    } else group.classList.add("plain");
    group.append(draw("text", { class: "name", y: isClass ? -13 : -8 }, nameOf(run, n)));
    return group;
  }
  function mark(n) {
    const group = shape(n);
    group.classList.add("node");
    Object.assign(group.dataset, { kind: n.kind, index: n.index });
    group.onpointerenter = () => dragged || light(n);
    group.onpointerleave = () => dragged || light(null);
    group.onpointerdown = (event) => {
      dragged = { x: event.clientX, y: event.clientY, far: false };
      group.setPointerCapture(event.pointerId);
      light(n);
      event.preventDefault();
      svg.focus({ preventScroll: true });
    };
    group.onpointermove = (event) => {
      if (!dragged) return;
      if (Math.hypot(event.clientX - dragged.x, event.clientY - dragged.y) > 3) dragged.far = moved = true;
      if (!dragged.far) return;
      const box = svg.getBoundingClientRect();
      n.x = (((event.clientX - box.left) / box.width) * width - fit.dx) / fit.across;
      n.y = (((event.clientY - box.top) / box.height) * height - fit.dy) / fit.down;
      n.held = true;
      if (!CALM.matches) heat = Math.max(heat, 12);
      start();
    };
    group.onpointerup = () => {
      if (dragged && !dragged.far) take(n);
      dragged = null;
    };
    group.onpointercancel = () => (dragged = null);
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
    const push = (a, b, x, y) => ((a.fx += x), (a.fy += y), (b.fx -= x), (b.fy -= y));
    for (const n of nodes) (n.fx = -n.x * 0.35), (n.fy = -n.y * 0.5); // towards the middle, so that components stay close
    for (let i = 0; i < nodes.length; i++) {
      for (let j = i + 1; j < nodes.length; j++) {
        const a = nodes[i], b = nodes[j], x = a.x - b.x, y = a.y - b.y;
        const force = (ideal * ideal) / (x * x + y * y + 0.01);
        push(a, b, x * force, y * force);
      }
    }
    for (const [a, b] of edges) {
      const x = a.x - b.x, y = a.y - b.y, force = Math.hypot(x, y) / ideal / ease;
      push(b, a, x * force, y * force);
    }
    for (const n of nodes) {
      const d = Math.hypot(n.fx, n.fy) || 1, by = Math.min(d, step) / d;
      if (!n.held) (n.x += n.fx * by), (n.y += n.fy * by);
    }
    heat--;
  }
  function paint() {
    if (!moved || !fit) {
      const xs = nodes.map((n) => n.x), ys = nodes.map((n) => n.y);
      const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
      const across = Math.min((width - 110) / (right - left || 1), 3);
      const down = Math.min((height - 70) / (bottom - top || 1), 3);
      fit = { across, down, dx: width / 2 - (across * (left + right)) / 2, dy: height / 2 + 6 - (down * (top + bottom)) / 2 };
    }
    const taken = []; // by names; those that overlap show only on hover
    for (const n of nodes) {
      n.px = n.x * fit.across + fit.dx;
      n.py = n.y * fit.down + fit.dy;
      n.mark.setAttribute("transform", `translate(${n.px.toFixed(1)} ${n.py.toFixed(1)})`);
      if (n.kind === "feature") continue;
      const half = (narrow ? 4.2 : 3.3) * (classes[n.index].length + 1);
      const crowded = taken.some(([x, y, other]) => Math.abs(x - n.px) < half + other && Math.abs(y - n.py) < 13);
      n.mark.classList.toggle("crowded", crowded);
      if (!crowded) taken.push([n.px, n.py, half]);
    }
    lines.setAttribute("d", path(edges));
    light();
  }
  const path = (some) => some.map(([a, b]) => `M${a.px.toFixed(1)},${a.py.toFixed(1)}L${b.px.toFixed(1)},${b.py.toFixed(1)}`).join("");

  // Highlight the hovered node, or else the selected one, with its neighbours.
  function light(hovered = pointed) {
    pointed = hovered;
    const focus = pointed ?? nodes.find(isChosen);
    for (const n of near) n.mark.classList.remove("near", "chosen");
    // a class with its features and the classes that share them
    const spokes = focus?.px === undefined ? [] : focus.kind === "class" ? [...focus.near] : [focus];
    near = [...new Set([...spokes, ...spokes.flatMap((feature) => [...feature.near])])];
    svg.classList.toggle("pointing", near.length > 0);
    lit.setAttribute("d", path(spokes.flatMap((feature) => [...feature.near].map((other) => [feature, other]))));
    front.replaceChildren(lit);
    for (const n of near) {
      const copy = shape(n);
      copy.setAttribute("transform", n.mark.getAttribute("transform"));
      copy.classList.toggle("strong", n === focus);
      front.append(copy);
      n.mark.classList.add("near");
      n.mark.classList.toggle("chosen", isChosen(n));
    }
  }
  const take = (n) => choose({ kind: n.kind, index: n.index, space: spaceOf(layers.value) });
  const isChosen = (n) =>
    n.kind === chosen?.kind && n.index === chosen.index && (n.kind === "class" || chosen.space === spaceOf(layers.value));

  svg.onkeydown = (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (event.key === "Escape") choose(null);
    if (event.key === "Enter" && pointed) take(pointed);
    if (!way || !nodes.length) return;
    event.preventDefault();
    const from = pointed ?? nodes.find(isChosen);
    light(from ? towards(from, way) : nodes.find((n) => n.kind === "class"));
    say(`${nameOf(run, pointed)}: ${[...pointed.near].map((n) => nameOf(run, n)).join(", ")}`);
  };
  function towards(from, [x, y]) {
    const distance = ({ px, py }) => {
      const along = (px - from.px) * x + (py - from.py) * y;
      return along > 0.5 ? along + 2 * Math.abs((px - from.px) * y + (py - from.py) * x) : Infinity;
    };
    return nodes.reduce((best, n) => (distance(n) < distance(best) ? n : best), from);
  }
  svg.onblur = () => light(null);

  function listComponents({ components, isolated }) {
    const part = (title, members) => [make("h4", {}, title), make("p", {}, ...members.map((index) => {
      const button = link(classes[index], () => choose({ kind: "class", index }));
      button.dataset.class = index;
      return button;
    }))];
    const parts = components.flatMap(({ classes: members, features: { length } }) =>
      part(`${members.length} classes, ${length} feature${length === 1 ? "" : "s"}`, members));
    panel.querySelector(".parts").replaceChildren(...parts, ...(isolated.length ? part("share no feature", isolated) : []));
  }

  const option = (value, label = value) => make("option", { value }, label);
  function offer() {
    const before = Number(sizes.value) || 5;
    const ks = graphs.filter((g) => g.layer === layers.value).map((g) => g.k);
    sizes.replaceChildren(...ks.map((k) => option(k)));
    sizes.value = ks.includes(before) ? before : ks[0];
    load();
  }
  for (const layer of new Set(graphs.map((g) => g.layer)))
    layers.append(option(layer, curves.findLast((curve) => curve.layer === layer)?.label));
  layers.onchange = offer;
  sizes.onchange = load;
  const groups = superclass ? superclasses : [];
  panel.querySelector(".groups").append(...groups.map((name, i) => make("li", {}, make("b", { style: hue(i) }, i + 1), name)));
  offer();
  return (wanted) => {
    chosen = wanted;
    light(null);
    if (wanted?.kind === "class" && !nodes.some(isChosen))
      say(`${nameOf(run, wanted)}: none of its ${sizes.value} features is shared with another class.`);
    for (const button of panel.querySelectorAll("[data-class]"))
      button.toggleAttribute("aria-current", wanted?.kind === "class" && Number(button.dataset.class) === wanted.index);
  };
}
