// The graph as people handle it: wheel, drag, touch, keys, search, groups, and what is said about the chosen node.

const MOST_FACTS_SHOWN = 40;

class Graph {
  constructor(section, models) {
    this.section = section;
    this.models = models;
    this.part = (name) => section.querySelector(`[data-part="${name}"]`);
    this.area = this.part("area");
    this.pointers = new Map();
    models.forEach((model, place) => this.part("which").append(new Option(model.label, String(place))));
    this.part("which").closest("label").hidden = models.length < 2;
    this.listen();
    this.show(models[0]);
  }

  // Draw a graph of the page, with the coloring that was chosen where the graph has it.
  show(model) {
    const name = this.coloring?.name;
    this.model = model;
    this.drawing = new GraphDrawing(model, this.part("canvas"));
    this.colorings = model.colorings.map((held) => new GraphColoring(held, model.count));
    this.coloring = this.colorings.find((coloring) => coloring.name === name) ?? this.colorings[0];
    this.hits = null;
    this.buildColorings();
    this.layOut();
    this.resize();
    this.showAll();
    this.choose(null);
    this.search();
    this.section.dataset.graph = model.label;
  }

  layOut() {
    const started = performance.now();
    this.layout = new Layout(this.model);
    this.section.dataset.layoutMs = (performance.now() - started).toFixed(0);
    this.section.dataset.boxes = String(this.layout.boxes.length);
    // Groups that are closed take more than one node does.
    for (const coloring of this.colorings) if (coloring.amounts) coloring.scaleTo(this.layout.boxes);
    this.buildLegend();
  }

  resize() {
    this.drawing.resize(Math.max(280, this.area.clientWidth), this.area.clientHeight || 560);
    this.draw();
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    if (!this.view) return;
    const started = performance.now();
    this.drawing.draw(this.layout, this.view, this.chosen, this.hits, this.coloring);
    Object.assign(this.section.dataset, {
      drawn: String(this.drawing.drawn), drawMs: (performance.now() - started).toFixed(1), scale: this.view.scale.toFixed(3),
    });
  }

  // --- the view ----------------------------------------------------------------------------------------------

  showAll() {
    const { layout, drawing } = this;
    const [width, height] = [layout.right - layout.left + 40, layout.bottom - layout.top + 40];
    const whole = Math.min(1.1, drawing.width / width, drawing.height / height);
    // A graph is shown whole if it can be read then; a larger one begins at its top.
    const scale = whole >= 0.6 ? whole : 0.7;
    // The first node is in the middle, unless there is nothing beside it: on a narrow screen half of the area would be empty.
    const half = drawing.width / 2 / scale;
    const first = Math.min(Math.max(layout.boxes[0]?.x ?? 0, layout.left - 20 + half), layout.right + 20 - half);
    this.view = {
      scale,
      x: width * scale > drawing.width ? first : (layout.left + layout.right) / 2,
      y: height * scale > drawing.height ? layout.top - 20 + drawing.height / 2 / scale : (layout.top + layout.bottom) / 2,
    };
    this.schedule();
  }

  showWhole() {
    const { layout, drawing } = this;
    const [width, height] = [layout.right - layout.left + 40, layout.bottom - layout.top + 40];
    this.view = {
      scale: Math.min(1.1, drawing.width / width, drawing.height / height),
      x: (layout.left + layout.right) / 2, y: (layout.top + layout.bottom) / 2,
    };
    this.schedule();
  }

  zoom(factor, at = { x: this.drawing.width / 2, y: this.drawing.height / 2 }) {
    const { view, drawing } = this;
    const scale = Math.min(3, Math.max(0.003, view.scale * factor));
    const [dx, dy] = [at.x - drawing.width / 2, at.y - drawing.height / 2];
    this.view = { scale, x: view.x + dx / view.scale - dx / scale, y: view.y + dy / view.scale - dy / scale };
    this.schedule();
  }

  center(box) {
    this.view = { scale: Math.max(this.view.scale, 0.7), x: box.x, y: box.y };
    this.schedule();
  }

  boxAt(event) {
    const rect = this.area.getBoundingClientRect();
    const x = (event.clientX - rect.left - this.drawing.width / 2) / this.view.scale + this.view.x;
    const y = (event.clientY - rect.top - this.drawing.height / 2) / this.view.scale + this.view.y;
    return this.layout.boxes.find((box) => Math.abs(box.x - x) <= BOX.width / 2 && Math.abs(box.y - y) <= BOX.height / 2) ?? null;
  }

  // --- groups ------------------------------------------------------------------------------------------------

  // Lay out anew, with a node where it was on the screen.
  change(node) {
    const before = this.layout.boxes[this.layout.boxOf[node]];
    this.layOut();
    const after = this.layout.boxes[this.layout.boxOf[node]];
    if (this.view) this.view = { ...this.view, x: this.view.x + after.x - before.x, y: this.view.y + after.y - before.y };
    this.schedule();
  }

  open(box) {
    if (box.group < 0) return;
    this.model.groups[box.group].open = true;
    this.change(box.first);
    this.choose(this.layout.boxes[this.layout.boxOf[box.first]]);
  }

  // Close the innermost open group around a node.
  closeAround(node) {
    let group = this.model.groupOf[node];
    let found = -1;
    for (; group >= 0; group = this.model.groups[group].parent) {
      if (this.model.groups[group].open) { found = group; break; }
    }
    if (found < 0) return;
    this.model.groups[found].open = false;
    this.change(node);
    this.choose(this.layout.boxes[this.layout.boxOf[node]]);
  }

  setAll(open) {
    for (const group of this.model.groups) group.open = open;
    this.layOut();
    this.showAll();
  }

  // --- coloring, search --------------------------------------------------------------------------------------

  buildColorings() {
    const chooser = this.part("coloring");
    chooser.replaceChildren(...this.colorings.map((coloring, place) => new Option(coloring.name, String(place))));
    chooser.value = String(this.colorings.indexOf(this.coloring));
    chooser.closest("label").hidden = this.colorings.length < 2;
    const grouped = this.model.groups.length > 0;
    this.part("open").hidden = this.part("close").hidden = !grouped;
  }

  buildLegend() {
    const list = this.part("legend");
    const { coloring } = this;
    const entry = (color, text) => {
      const item = document.createElement("li");
      const patch = document.createElement("i");
      patch.style.background = color;
      item.className = "entry";
      item.append(patch, text);
      return item;
    };
    if (coloring.amounts) {
      const steps = HEAT.map((color, place) => entry(color, `from ${durationText(1000 * coloring.largest * (place / HEAT.length) ** 2)}`));
      list.replaceChildren(...steps, ...(coloring.amounts.includes(null) ? [entry(OTHER, "not measured by itself")] : []));
    } else {
      const shown = coloring.values.map((value, place) => entry(coloring.colors[place], `${value} ${coloring.counts[place].toLocaleString("en")}`));
      const rest = shown.length - PALETTE.length;
      list.replaceChildren(...shown.slice(0, PALETTE.length));
      if (rest > 0) { const item = document.createElement("li"); item.className = "note"; item.textContent = `and ${rest} more`; list.append(item); }
    }
    this.section.dataset.coloring = coloring.name;
  }

  search() {
    this.hits = this.model.search(this.part("search").value);
    this.part("hits").textContent = this.hits === null ? "" : `${this.hits.length.toLocaleString("en")} found`;
    this.section.dataset.hits = this.hits === null ? "" : String(this.hits.length);
    this.schedule();
  }

  step(direction) {
    if (!this.hits?.length) return;
    const { hits } = this;
    const from = this.chosen ?? (direction > 0 ? -1 : this.model.count);
    const next = direction > 0 ? hits.find((node) => node > from) ?? hits[0] : hits.findLast((node) => node < from) ?? hits.at(-1);
    this.goTo(next);
  }

  goTo(node) {
    if (this.model.reveal(node)) this.layOut();
    const box = this.layout.boxes[this.layout.boxOf[node]];
    this.choose(box);
    this.center(box);
  }

  // Choose the first node that has one of these names.
  mark(names) {
    const wanted = new Set(names);
    // A node without a name has that of its result, which is a box, too.
    const box = this.chosen === null ? null : this.layout.boxes[this.layout.boxOf[this.chosen]];
    if (box && box.group < 0 && wanted.has(this.model.texts[this.model.names[this.chosen]])) return;
    const node = this.model.names.findIndex((name) => wanted.has(this.model.texts[name]));
    if (node >= 0 && node !== this.chosen) this.goTo(node);
  }

  // A person chose a box: others follow.
  tell(box) { if (box && box.group < 0) this.chose?.(this.model.texts[this.model.names[box.first]]); }

  // --- the chosen box ----------------------------------------------------------------------------------------

  choose(box) {
    const { model } = this;
    const panel = this.part("panel");
    this.chosen = box ? box.first : null;
    this.section.dataset.chosen = box ? model.texts[model.names[box.first]] : "";
    if (!box) {
      const note = document.createElement("p");
      note.className = "note";
      note.textContent = "Select a node to see its details. A double click opens a group.";
      panel.replaceChildren(note);
      this.schedule();
      return;
    }
    const head = document.createElement("b");
    const facts = document.createElement("dl");
    facts.className = "facts";
    const add = (name, value) => {
      const [term, held] = [document.createElement("dt"), document.createElement("dd")];
      term.textContent = name;
      held.textContent = value;
      facts.append(term, held);
      return held;
    };
    const tools = document.createElement("div");
    tools.className = "tools";
    const button = (text, work) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", work);
      tools.append(made);
    };
    if (box.group >= 0) {
      head.textContent = `${model.path(box.group)}: ${box.end - box.first} nodes`;
      button("Open", () => this.open(box));
    } else {
      head.textContent = `${model.texts[model.kinds[box.first]]} ${model.texts[model.names[box.first]]}`;
      const held = model.facts[box.first];
      for (let at = 0; at < Math.min(held.length, 2 * MOST_FACTS_SHOWN); at += 2) add(model.texts[held[at]], model.texts[held[at + 1]]);
    }
    this.addShares(box, add);
    this.addNeighbors("reads from", this.layout.before[this.layout.boxOf[box.first]].map(({ from, values }) => [from, values]), add);
    this.addNeighbors("read by", this.layout.after[this.layout.boxOf[box.first]].map(({ to, values }) => [to, values]), add);
    if (model.groups.some((group) => group.open && group.first <= box.first && box.first < group.end)) button("Close the group around it", () => this.closeAround(box.first));
    panel.replaceChildren(head, facts, ...(tools.childElementCount ? [tools] : []));
    this.schedule();
  }

  addShares(box, add) {
    for (const coloring of this.colorings) {
      if (coloring.amounts) {
        const amount = coloring.amount(box);
        add(coloring.name, amount === null ? "not measured by itself" : `${durationText(1000 * amount)}, ${((100 * amount) / (coloring.total || 1)).toFixed(1)} %`);
      } else if (box.end - box.first > 1) {
        const counts = new Map();
        for (let node = box.first; node < box.end; node += 1) counts.set(coloring.codes[node], (counts.get(coloring.codes[node]) ?? 0) + 1);
        const ranked = [...counts].sort(([, one], [, two]) => two - one).slice(0, 8);
        add(coloring.name, ranked.map(([code, count]) => `${count} ${coloring.values[code]}`).join(", "));
      }
    }
  }

  addNeighbors(name, found, add) {
    if (!found.length) return;
    const held = add(name, "");
    for (const [place, values] of found.slice(0, 12)) {
      const box = this.layout.boxes[place];
      const link = document.createElement("button");
      link.type = "button";
      link.className = "link";
      const of = box.group >= 0 ? this.model.texts[this.model.groups[box.group].label] : this.model.texts[this.model.names[box.first]];
      link.textContent = of || this.model.texts[this.model.kinds[box.first]];
      link.title = values.slice(0, 8).map((value) => this.model.texts[value]).join(", ");
      link.addEventListener("click", () => { this.choose(box); this.center(box); });
      held.append(link, " ");
    }
    if (found.length > 12) held.append(`and ${found.length - 12} more`);
  }

  // A neighbor of the chosen box: of the layer, or along an arrow.
  move(key) {
    const { layout } = this;
    if (this.chosen === null) { if (layout.boxes.length) this.pick(layout.boxes[0]); return; }
    const place = layout.boxOf[this.chosen];
    const box = layout.boxes[place];
    let next;
    if (key === "ArrowUp") next = layout.boxes[layout.before[place][0]?.from];
    else if (key === "ArrowDown") next = layout.boxes[layout.after[place][0]?.to];
    else {
      const layer = layout.layers[box.rank].filter((one) => one.first !== undefined);
      next = layer[layer.indexOf(box) + (key === "ArrowLeft" ? -1 : 1)];
    }
    if (next) this.pick(next);
  }

  pick(box) { this.choose(box); this.center(box); this.tell(box); }

  // --- hands -------------------------------------------------------------------------------------------------

  listen() {
    const { area } = this;
    this.part("search").addEventListener("input", () => this.search());
    this.part("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
    });
    this.part("open").addEventListener("click", () => this.setAll(true));
    this.part("close").addEventListener("click", () => this.setAll(false));
    this.part("which").addEventListener("change", (event) => this.show(this.models[Number(event.target.value)]));
    this.part("coloring").addEventListener("change", (event) => {
      this.coloring = this.colorings[Number(event.target.value)];
      this.buildLegend();
      this.schedule();
    });
    this.part("in").addEventListener("click", () => this.zoom(1.4));
    this.part("out").addEventListener("click", () => this.zoom(1 / 1.4));
    this.part("all").addEventListener("click", () => this.showWhole());
    area.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && document.activeElement !== area) { this.part("wheel").hidden = false; return; }
      event.preventDefault();
      const rect = area.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), { x: event.clientX - rect.left, y: event.clientY - rect.top });
    }, { passive: false });
    area.addEventListener("pointerdown", (event) => {
      this.pointers.set(event.pointerId, { x: event.clientX, y: event.clientY });
      this.dragged = false;
      area.setPointerCapture(event.pointerId);
    });
    area.addEventListener("pointermove", (event) => this.drag(event));
    const lift = (event) => {
      if (!this.pointers.delete(event.pointerId)) return;
      area.classList.remove("held");
      if (event.type === "pointerup" && !this.dragged) { this.choose(this.boxAt(event)); this.tell(this.boxAt(event)); }
    };
    area.addEventListener("pointerup", lift);
    area.addEventListener("pointercancel", lift);
    area.addEventListener("dblclick", (event) => { const box = this.boxAt(event); if (box) this.open(box); });
    area.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.resize()).observe(area);
    window.addEventListener("beforeprint", () => this.draw());
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.schedule());
  }

  drag(event) {
    const before = this.pointers.get(event.pointerId);
    if (!before) return;
    const now = { x: event.clientX, y: event.clientY };
    if (!this.dragged && Math.hypot(now.x - before.x, now.y - before.y) < 4) return;
    this.dragged = true;
    this.area.classList.add("held");
    const others = [...this.pointers].filter(([id]) => id !== event.pointerId).map(([, at]) => at);
    if (others.length) {
      const far = (one) => Math.hypot(one.x - others[0].x, one.y - others[0].y) || 1;
      const rect = this.area.getBoundingClientRect();
      this.zoom(far(now) / far(before), { x: (now.x + others[0].x) / 2 - rect.left, y: (now.y + others[0].y) / 2 - rect.top });
    } else {
      const { view } = this;
      this.view = { ...view, x: view.x - (now.x - before.x) / view.scale, y: view.y - (now.y - before.y) / view.scale };
      this.schedule();
    }
    this.pointers.set(event.pointerId, now);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const box = this.chosen === null ? null : this.layout.boxes[this.layout.boxOf[this.chosen]];
    const keys = {
      "+": () => this.zoom(1.4), "=": () => this.zoom(1.4), "-": () => this.zoom(1 / 1.4), Home: () => this.showWhole(),
      n: () => this.step(1), p: () => this.step(-1), "/": () => this.part("search").focus(), Escape: () => this.choose(null),
      Enter: () => { if (box) this.open(box); }, Backspace: () => { if (box) this.closeAround(box.first); },
    };
    for (const arrow of ["ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"]) keys[arrow] = () => this.move(arrow);
    const work = keys[event.key];
    if (!work) return;
    event.preventDefault();
    work();
  }
}
