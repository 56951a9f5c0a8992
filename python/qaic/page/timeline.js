// The timeline as people handle it: wheel, drag, touch, keys, search, and what is said about the chosen operation.

const NARROWEST_NS = 20;

class Timeline {
  constructor(section, model) {
    this.section = section;
    this.model = model;
    this.part = (name) => section.querySelector(`[data-part="${name}"]`);
    this.rows = this.part("rows");
    this.drawing = new Drawing(model, this.part("canvas"), this.part("mini"));
    this.state = { view: { ...model.extent }, scroll: 0, chosen: null, measure: null };
    this.kinds = new Set();
    this.pointers = new Map();
    this.part("spacer").style.height = `${this.drawing.height + AXIS}px`;
    this.buildLegend();
    this.buildSamples();
    this.listen();
    this.resize();
  }

  // --- drawing -----------------------------------------------------------------------------------------------

  resize() {
    const width = Math.max(320, this.rows.clientWidth);
    const height = Math.min(this.drawing.height + AXIS, 560);
    this.rows.style.height = `${height}px`;
    this.drawing.resize(width, height);
    this.draw();
  }

  schedule() {
    if (this.waiting) return;
    this.waiting = requestAnimationFrame(() => { this.waiting = 0; this.draw(); });
  }

  draw() {
    const started = performance.now();
    this.state.scroll = this.rows.scrollTop;
    this.drawing.draw(this.state);
    Object.assign(this.section.dataset, {
      drawn: String(this.drawing.drawn),
      operations: String(this.model.operations),
      rows: String(this.model.tracks.length),
      from: this.state.view.from.toFixed(1),
      to: this.state.view.to.toFixed(1),
      drawMs: (performance.now() - started).toFixed(1),
    });
  }

  show(from, to) {
    const { extent } = this.model;
    const width = Math.min(Math.max(to - from, NARROWEST_NS), extent.to - extent.from);
    const begin = Math.min(Math.max(from + (to - from - width) / 2, extent.from), extent.to - width);
    this.state.view = { from: begin, to: begin + width };
    this.schedule();
  }

  zoom(factor, x = GUTTER + this.drawing.span / 2) {
    const at = this.drawing.time(Math.max(x, GUTTER));
    const { from, to } = this.state.view;
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }

  pan(part) {
    const { from, to } = this.state.view;
    const step = (to - from) * part;
    this.show(from + step, to + step);
  }

  // --- legend, samples, search -------------------------------------------------------------------------------

  buildLegend() {
    const list = this.part("legend");
    const total = this.model.kindTime.reduce((sum, time) => sum + time, 0) || 1;
    for (const kind of this.model.ranked.slice(0, PALETTE.length)) {
      const item = document.createElement("li");
      const button = document.createElement("button");
      const patch = document.createElement("i");
      button.type = "button";
      patch.style.background = this.model.kindColor[kind];
      const share = ((100 * this.model.kindTime[kind]) / total).toFixed(1);
      button.append(patch, `${this.model.kinds[kind]} ${share} %`);
      button.setAttribute("aria-pressed", "false");
      button.title = "Show only this kind";
      button.addEventListener("click", () => {
        const pressed = this.kinds.has(kind);
        if (pressed) this.kinds.delete(kind); else this.kinds.add(kind);
        button.setAttribute("aria-pressed", String(!pressed));
        this.search();
      });
      item.append(button);
      list.append(item);
    }
    const rest = this.model.ranked.length - PALETTE.length;
    const { samples, shown } = this.model.header;
    const notes = [rest > 0 && `and ${rest} more kinds`];
    if (samples.length > 1) notes.push(`shares of the time of inference ${samples[shown].name}`);
    const item = document.createElement("li");
    item.className = "note";
    item.textContent = notes.filter(Boolean).join("; ");
    if (item.textContent) list.append(item);
  }

  buildSamples() {
    const chooser = this.part("samples");
    const { samples } = this.model.header;
    if (samples.length < 2) { chooser.closest("label").remove(); return; }
    samples.forEach((sample, index) => chooser.append(new Option(sample.name, String(index))));
    chooser.value = String(this.model.header.shown);
    chooser.addEventListener("change", () => this.showSample(samples[Number(chooser.value)]));
  }

  showSample(sample) {
    this.model.zero = sample.start_ns;
    const margin = Math.max((sample.end_ns - sample.start_ns) * 0.02, 1);
    this.show(sample.start_ns - margin, sample.end_ns + margin);
  }

  search() {
    const hits = this.model.search(this.part("search").value, this.kinds);
    this.part("hits").textContent = hits === null ? "" : `${hits.toLocaleString("en")} found`;
    this.section.dataset.hits = hits === null ? "" : String(hits);
    this.schedule();
  }

  // The next or last operation that is searched for, in the row of the chosen one and then in the others.
  step(direction) {
    const { tracks } = this.model;
    if (!tracks.length) return;
    const { chosen } = this.state;
    let row = chosen ? chosen.track.index : this.firstRow();
    let from = chosen ? chosen.index : -1;
    for (let tried = 0; tried <= tracks.length; tried += 1) {
      const found = tracks[row].nextMarked(from, direction);
      if (found >= 0) { this.choose(tracks[row], found, { reveal: true }); return; }
      row = (row + direction + tracks.length) % tracks.length;
      from = direction > 0 ? -1 : tracks[row].count;
    }
  }

  firstRow() {
    const row = this.model.tracks.findIndex((track) => track.role === "ops" && track.count);
    return Math.max(0, row);
  }

  stepRow(direction) {
    const { chosen, view } = this.state;
    const middle = chosen ? chosen.track.start[chosen.index] : (view.from + view.to) / 2;
    let row = chosen ? chosen.track.index + direction : this.firstRow();
    for (; row >= 0 && row < this.model.tracks.length; row += direction) {
      const track = this.model.tracks[row];
      if (!track.count) continue;
      const near = Math.min(track.from(middle), track.count - 1);
      this.choose(track, near, { reveal: true });
      return;
    }
  }

  // --- one operation -----------------------------------------------------------------------------------------

  choose(track, index, { reveal = false } = {}) {
    this.state.chosen = { track, index };
    if (reveal) {
      const { from, to } = this.state.view;
      const middle = (track.start[index] + track.end[index]) / 2;
      if (track.start[index] < from || track.end[index] > to) {
        const width = Math.max(to - from, track.duration(index) * 1.2);
        this.show(middle - width / 2, middle + width / 2);
      }
      const row = this.drawing.rows.find((candidate) => candidate.track === track);
      const top = row.y - this.rows.scrollTop;
      if (top < 0 || top + row.height > this.rows.clientHeight - AXIS) this.rows.scrollTop = row.y - 60;
    }
    const label = track.label[index];
    const name = this.model.name(label);
    const nodes = this.model.labels.nodes[label] ?? [];
    this.row = tables.find([name, name.replace(/\/__\d+$/, ""), ...nodes]);
    this.chose?.([...nodes.flatMap((text) => text.split(" + ")), name.replace(/\/__\d+$/, "")].filter(Boolean));
    this.describe(track, index);
    this.schedule();
  }

  // Choose the first operation of a node in view, else of all; false where none has the name.
  find(name) {
    const { from } = this.state.view;
    const { labels } = this.model;
    const is = (label) => labels.nodes[label]?.some((text) => text.split(" + ").includes(name)) || this.model.name(label).replace(/\/__\d+$/, "") === name;
    for (const track of this.model.tracks.filter(({ role }) => role === "ops")) {
      const seen = track.label.findIndex((label, index) => track.start[index] >= from && is(label));
      const index = seen >= 0 ? seen : track.label.findIndex(is);
      if (index >= 0) { this.choose(track, index, { reveal: true }); return true; }
    }
    return false;
  }

  describe(track, index) {
    const list = document.createElement("dl");
    list.className = "facts";
    for (const [title, value] of this.model.facts(track, index)) {
      const term = document.createElement("dt");
      const definition = document.createElement("dd");
      term.textContent = title;
      definition.textContent = value;
      list.append(term, definition);
    }
    const tools = document.createElement("p");
    if (this.row) tools.append(this.button("Its row in the tables", () => tables.reveal(this.row)), " ");
    tools.append(this.button("Zoom to it", () => {
      const width = Math.max(track.duration(index), NARROWEST_NS);
      this.show(track.start[index] - width * 0.2, track.end[index] + width * 0.2);
    }));
    this.part("panel").replaceChildren(list, tools);
  }

  button(text, action) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", action);
    return button;
  }

  clear() {
    this.state.chosen = null;
    this.state.measure = null;
    this.row = null;
    tables.find([]);
    this.part("panel").replaceChildren(this.hint.cloneNode(true));
    this.schedule();
  }

  describeMeasure() {
    const { from, to } = this.state.measure;
    const [begin, end] = [Math.min(from, to), Math.max(from, to)];
    const { count, kinds } = this.model.measure(begin, end);
    const list = document.createElement("dl");
    list.className = "facts";
    const rows = [["interval", durationText(end - begin)], ["operations", count.toLocaleString("en")]];
    for (const [kind, time] of kinds.slice(0, 12)) rows.push([this.model.kinds[kind], durationText(time)]);
    for (const [title, value] of rows) {
      const term = document.createElement("dt");
      const definition = document.createElement("dd");
      term.textContent = title;
      definition.textContent = value;
      list.append(term, definition);
    }
    const note = document.createElement("p");
    note.className = "note";
    note.textContent = "Sums over all rows, each clipped to the interval; rows work side by side.";
    this.part("panel").replaceChildren(list, note);
  }

  // --- hands -------------------------------------------------------------------------------------------------

  listen() {
    const { rows } = this;
    this.hint = this.part("panel").firstElementChild.cloneNode(true);
    rows.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    rows.addEventListener("pointerdown", (event) => this.press(event));
    rows.addEventListener("pointermove", (event) => this.move(event));
    rows.addEventListener("pointerup", (event) => this.release(event));
    rows.addEventListener("pointercancel", (event) => this.release(event));
    rows.addEventListener("pointerleave", () => this.hideTip());
    rows.addEventListener("dblclick", (event) => {
      const hit = this.hit(event);
      if (hit) this.choose(hit.track, hit.index);
      tables.reveal(this.row);
    });
    rows.addEventListener("scroll", () => this.schedule());
    rows.addEventListener("keydown", (event) => this.key(event));
    this.part("search").addEventListener("input", () => this.search());
    this.part("search").addEventListener("keydown", (event) => {
      if (event.key === "Enter") { event.preventDefault(); this.step(event.shiftKey ? -1 : 1); }
    });
    const acts = {
      in: () => this.zoom(0.5), out: () => this.zoom(2), left: () => this.pan(-0.25), right: () => this.pan(0.25),
      all: () => this.show(this.model.extent.from, this.model.extent.to),
    };
    for (const [name, act] of Object.entries(acts)) this.part(name).addEventListener("click", act);
    const mini = this.part("mini");
    const jump = (event) => {
      if (!(event.buttons & 1)) return;
      const place = (event.clientX - mini.getBoundingClientRect().left - GUTTER) / this.drawing.span;
      const { extent } = this.model;
      const at = extent.from + place * (extent.to - extent.from);
      const half = (this.state.view.to - this.state.view.from) / 2;
      this.show(at - half, at + half);
    };
    mini.addEventListener("pointerdown", (event) => { mini.setPointerCapture(event.pointerId); jump(event); });
    mini.addEventListener("pointermove", jump);
    new ResizeObserver(() => this.resize()).observe(this.section);
    for (const query of ["(prefers-color-scheme: dark)", "print"]) {
      window.matchMedia(query).addEventListener("change", () => this.draw());
    }
    window.addEventListener("beforeprint", () => this.draw());
  }

  place(event) {
    const box = this.rows.getBoundingClientRect();
    return { x: event.clientX - box.left, y: event.clientY - box.top - AXIS + this.rows.scrollTop };
  }

  hit(event) {
    const { x, y } = this.place(event);
    if (x < GUTTER) return null;
    const row = this.drawing.rowAt(y);
    if (!row || !row.track || !row.track.count) return null;
    const pixel = (this.state.view.to - this.state.view.from) / this.drawing.span;
    const index = row.track.at(this.drawing.time(x), 3 * pixel);
    return index < 0 ? null : { track: row.track, index };
  }

  // Pages are scrolled with the wheel too: it zooms with Ctrl, or once the timeline was clicked.
  wheel(event) {
    const { x } = this.place(event);
    const sideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const mine = event.ctrlKey || event.metaKey || document.activeElement === this.rows;
    if (!mine && !sideways) { this.part("wheel").hidden = false; return; }
    event.preventDefault();
    if (sideways && !event.ctrlKey) this.pan(Math.sign(event.deltaX || event.deltaY) * 0.08);
    else this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), x);
  }

  press(event) {
    if (event.button !== 0) return;
    this.rows.focus({ preventScroll: true });
    this.rows.setPointerCapture(event.pointerId);
    const { x } = this.place(event);
    this.pointers.set(event.pointerId, { x, startX: x, moved: false });
    if (event.shiftKey && this.pointers.size === 1) {
      const at = this.drawing.time(x);
      this.state.measure = { from: at, to: at };
      this.measuring = true;
    }
    this.rows.classList.add(this.measuring ? "measuring" : "held");
    this.hideTip();
  }

  move(event) {
    const pointer = this.pointers.get(event.pointerId);
    if (!pointer) { this.tip(event); return; }
    const { x } = this.place(event);
    const before = pointer.x;
    pointer.x = x;
    if (Math.abs(x - pointer.startX) > 3) pointer.moved = true;
    if (this.measuring) {
      this.state.measure.to = this.drawing.time(Math.max(x, GUTTER));
      this.schedule();
    } else if (this.pointers.size === 2) {
      const [first, second] = [...this.pointers.values()];
      const other = pointer === first ? second : first;
      const was = Math.max(10, Math.abs(before - other.x));
      this.zoom(was / Math.max(10, Math.abs(x - other.x)), (x + other.x) / 2);
    } else if (pointer.moved) {
      this.pan((before - x) / this.drawing.span);
    }
  }

  release(event) {
    const pointer = this.pointers.get(event.pointerId);
    this.pointers.delete(event.pointerId);
    if (this.pointers.size) return;
    this.rows.classList.remove("held", "measuring");
    if (!pointer || event.type === "pointercancel") { this.measuring = false; return; }
    if (this.measuring) {
      this.measuring = false;
      if (pointer.moved) this.describeMeasure(); else this.clear();
      return;
    }
    if (pointer.moved) return;
    const hit = this.hit(event);
    if (hit) this.choose(hit.track, hit.index); else this.clear();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowLeft: () => this.pan(-0.15), ArrowRight: () => this.pan(0.15), a: () => this.pan(-0.15), d: () => this.pan(0.15),
      "+": () => this.zoom(0.6), "=": () => this.zoom(0.6), w: () => this.zoom(0.6),
      "-": () => this.zoom(1 / 0.6), s: () => this.zoom(1 / 0.6),
      ArrowUp: () => this.stepRow(-1), ArrowDown: () => this.stepRow(1),
      n: () => this.step(1), p: () => this.step(-1),
      Home: () => this.show(this.model.extent.from, this.model.extent.to), 0: () => this.show(this.model.extent.from, this.model.extent.to),
      Enter: () => tables.reveal(this.row), Escape: () => this.clear(),
      "/": () => this.part("search").focus(),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  tip(event) {
    const hit = event.pointerType === "touch" ? null : this.hit(event);
    if (!hit) { this.hideTip(); return; }
    const tip = this.part("tip");
    const label = hit.track.label[hit.index];
    const title = document.createElement("b");
    title.textContent = this.model.name(label) || this.model.kind(label);
    const lines = this.model.facts(hit.track, hit.index).filter(([key]) => key !== "name" && key !== "row" && key !== "begins");
    tip.replaceChildren(title, ...lines.map(([key, value]) => {
      const line = document.createElement("div");
      line.textContent = `${key}: ${value.length > 300 ? value.slice(0, 300) + "\u2026" : value}`;
      return line;
    }));
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 10);
    const below = event.clientY + 16 + tip.offsetHeight < window.innerHeight;
    tip.style.left = `${Math.max(6, left)}px`;
    tip.style.top = `${below ? event.clientY + 16 : event.clientY - tip.offsetHeight - 12}px`;
  }

  hideTip() { this.part("tip").hidden = true; }
}
