// Draws rows of operations on a canvas. Time is in nanoseconds from the page's origin.

const GUTTER = 184;
const AXIS = 26;
const MINI = 34;
// PALETTE and OTHER are written by the page, which has bars in the same colors.
const HOST_PALETTE = ["#ccd5e0", "#a9bdd3", "#d8cdb9", "#bfcfbf", "#d3c3d3"];

function timeText(ns, step = Math.abs(ns)) {
  const [unit, size] = step >= 1e9 ? ["s", 1e9] : step >= 1e6 ? ["ms", 1e6] : step >= 1e3 ? ["us", 1e3] : ["ns", 1];
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(Math.max(step, 1e-3) / size))));
  return `${(ns / size).toFixed(digits)} ${unit}`;
}

function threeDigits(value) {
  return value.toLocaleString("en", { minimumSignificantDigits: 3, maximumSignificantDigits: 3 });
}

function durationText(ns) {
  if (!ns) return "0 us";
  const [unit, size] = ns >= 1e9 ? ["s", 1e9] : ns >= 1e6 ? ["ms", 1e6] : ns >= 1e3 ? ["us", 1e3] : ["ns", 1];
  return `${threeDigits(ns / size)} ${unit}`;
}

function bytesText(bytes) {
  const powers = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  let value = bytes;
  while (value >= 1024 && power < powers.length - 1) { value /= 1024; power += 1; }
  return `${power ? threeDigits(value) : value} ${powers[power]}`;
}

class Drawing {
  constructor(model, canvas, mini) {
    this.model = model;
    this.canvas = canvas;
    this.mini = mini;
    this.layOut();
  }

  layOut() {
    this.rows = [];
    let y = 0;
    let group = null;
    for (const track of this.model.tracks) {
      if (track.group !== group) {
        group = track.group;
        this.rows.push({ title: group, y, height: 22 });
        y += 22;
      }
      const height = track.role === "span" ? 18 : 26;
      this.rows.push({ track, y, height });
      y += height;
    }
    this.height = y + 6;
  }

  colors() {
    const style = getComputedStyle(document.documentElement);
    const named = (name) => style.getPropertyValue(name).trim();
    return {
      card: named("--card"), ink: named("--ink"), soft: named("--soft"), line: named("--line"),
      accent: named("--accent"), row: named("--row"),
    };
  }

  resize(width, height) {
    const scale = window.devicePixelRatio || 1;
    for (const [canvas, high] of [[this.canvas, height], [this.mini, MINI]]) {
      canvas.width = Math.round(width * scale);
      canvas.height = Math.round(high * scale);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${high}px`;
      canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
    }
    this.width = width;
    this.visible = height;
    this.miniPicture = null;
  }

  get span() { return this.width - GUTTER; }
  x(time) { return GUTTER + ((time - this.view.from) / (this.view.to - this.view.from)) * this.span; }
  time(x) { return this.view.from + ((x - GUTTER) / this.span) * (this.view.to - this.view.from); }

  rowAt(y) { return this.rows.find((row) => y >= row.y && y < row.y + row.height) ?? null; }

  draw(state) {
    this.view = state.view;
    const ink = this.colors();
    const pen = this.canvas.getContext("2d");
    pen.clearRect(0, 0, this.width, this.visible);
    pen.fillStyle = ink.card;
    pen.fillRect(0, 0, this.width, this.visible);
    pen.textBaseline = "middle";
    this.drawn = 0;
    const top = AXIS - state.scroll;
    for (const row of this.rows) {
      const y = top + row.y;
      if (y + row.height < AXIS || y > this.visible) continue;
      if (row.track) this.drawTrack(pen, ink, row, y, state);
    }
    // The names lie over whatever reaches into their margin.
    pen.fillStyle = ink.card;
    pen.fillRect(0, 0, GUTTER, this.visible);
    for (const row of this.rows) {
      const y = top + row.y;
      if (y + row.height >= AXIS && y <= this.visible) this.drawName(pen, ink, row, y, state);
    }
    this.drawMeasure(pen, ink, state);
    this.drawAxis(pen, ink);
    pen.fillStyle = ink.line;
    pen.fillRect(GUTTER - 1, 0, 1, this.visible);
    this.drawMini(ink);
  }

  drawName(pen, ink, row, y, state) {
    const chosen = row.track && state.chosen && state.chosen.track === row.track;
    pen.font = row.track ? "12px system-ui, 'DejaVu Sans', sans-serif" : "600 12px system-ui, 'DejaVu Sans', sans-serif";
    pen.fillStyle = chosen ? ink.accent : row.track ? ink.soft : ink.ink;
    const text = this.fit(pen, row.track ? row.track.name : row.title, GUTTER - (row.track ? 30 : 16), 8);
    pen.textAlign = "left";
    pen.fillText(text, row.track ? 20 : 8, y + row.height / 2);
    if (!row.track) {
      pen.fillStyle = ink.line;
      pen.fillRect(0, y, this.width, 1);
    }
  }

  // Returns a text that is not wider than the width; a longer one loses the characters in front of its tail.
  fit(pen, text, width, tail = 0) {
    if (pen.measureText(text).width <= width) return text;
    let low = 0;
    const end = "\u2026" + text.slice(text.length - tail);
    let high = text.length - tail;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (pen.measureText(text.slice(0, middle) + end).width <= width) low = middle; else high = middle - 1;
    }
    return text.slice(0, low) + end;
  }

  drawTrack(pen, ink, row, y, state) {
    const { track, height } = row;
    const top = y + 3;
    const tall = height - 5;
    const first = Math.max(0, track.from(this.view.from) - 1);
    const last = track.from(this.view.to, first);
    if (last - first > 2 * this.span) this.drawCrowd(pen, track, first, last, top, tall);
    else this.drawEach(pen, ink, track, first, last, top, tall, state);
  }

  drawEach(pen, ink, track, first, last, top, tall, state) {
    pen.font = "11.5px system-ui, 'DejaVu Sans', sans-serif";
    pen.textAlign = "left";
    for (let i = first; i < last; i += 1) {
      const left = Math.max(this.x(track.start[i]), GUTTER - 2);
      const right = Math.min(this.x(track.end[i]), this.width + 2);
      if (track.before && track.before[i]) this.drawWait(pen, ink, this.x(track.start[i] - track.before[i] * track.ns_per_unit), left, top, tall);
      if (track.after && track.after[i]) this.drawWait(pen, ink, right, this.x(track.end[i] + track.after[i] * track.ns_per_unit), top, tall);
      if (right < GUTTER) continue;
      const width = Math.max(right - left, 1);
      const label = track.label[i];
      pen.globalAlpha = track.marked(i, i + 1) ? 1 : 0.16;
      pen.fillStyle = this.model.color(label);
      // A pixel of ground between neighbors, as long as there is room for it.
      pen.fillRect(left, top, width > 3 ? width - 1 : width, tall);
      if (width > 34) {
        pen.fillStyle = "#14181f";
        const name = this.model.caption(label, width > 150);
        pen.fillText(this.fit(pen, name, width - 10), left + 4, top + tall / 2 + 0.5);
      }
      if (track.members && track.members[i] > 1 && width > 6) {
        pen.fillStyle = "rgb(20 24 31 / 45%)";
        pen.fillRect(left, top + tall - 2, width - 1, 2);
      }
      pen.globalAlpha = 1;
      if (state.chosen && state.chosen.track === track && state.chosen.index === i) {
        pen.strokeStyle = ink.ink;
        pen.lineWidth = 2;
        pen.strokeRect(left + 0.5, top + 0.5, Math.max(width - 2, 2), tall - 1);
      }
      this.drawn += 1;
    }
  }

  drawWait(pen, ink, left, right, top, tall) {
    const from = Math.max(left, GUTTER);
    const width = Math.min(right, this.width) - from;
    if (width < 0.5) return;
    pen.globalAlpha = 0.5;
    pen.fillStyle = ink.soft;
    pen.fillRect(from, top + tall / 2 - 1, width, 2);
    pen.globalAlpha = 1;
  }

  // Many operations to a pixel: each column shows the longest of its operations, as high as the column is busy.
  drawCrowd(pen, track, first, last, top, tall) {
    const pixel = (this.view.to - this.view.from) / this.span;
    // The one before the view, which may reach into it.
    let low = track.end[first] > this.view.from ? first : first + 1;
    for (let column = 0; column < this.span; column += 1) {
      const until = this.view.from + (column + 1) * pixel;
      const high = track.from(until, low);
      const begin = until - pixel;
      if (high > low) {
        const busy = Math.min(1, track.busy(low, high) / pixel);
        const any = track.marked(low, high);
        pen.globalAlpha = any ? 1 : 0.16;
        pen.fillStyle = this.model.color(track.label[track.longest(low, high)]);
        const size = Math.max(2, tall * busy);
        pen.fillRect(GUTTER + column, top + tall - size, 1, size);
      } else if (low > 0 && track.end[low - 1] > begin) {
        pen.globalAlpha = track.marked(low - 1, low) ? 1 : 0.16;
        pen.fillStyle = this.model.color(track.label[low - 1]);
        pen.fillRect(GUTTER + column, top, 1, tall);
      }
      this.drawn += high - low;
      low = high;
    }
    pen.globalAlpha = 1;
  }

  drawMeasure(pen, ink, state) {
    if (!state.measure) return;
    const left = Math.max(this.x(Math.min(state.measure.from, state.measure.to)), GUTTER);
    const right = Math.min(this.x(Math.max(state.measure.from, state.measure.to)), this.width);
    if (right <= left) return;
    pen.globalAlpha = 0.16;
    pen.fillStyle = ink.accent;
    pen.fillRect(left, AXIS, right - left, this.visible);
    pen.globalAlpha = 1;
    pen.fillRect(left, AXIS, 1, this.visible);
    pen.fillRect(right - 1, AXIS, 1, this.visible);
  }

  drawAxis(pen, ink) {
    pen.fillStyle = ink.card;
    pen.fillRect(0, 0, this.width, AXIS);
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    const wanted = (this.view.to - this.view.from) / Math.max(2, this.span / 130);
    const power = 10 ** Math.floor(Math.log10(wanted));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= wanted);
    pen.textAlign = "left";
    const { zero } = this.model;
    for (let n = Math.ceil((this.view.from - zero) / step); n * step <= this.view.to - zero; n += 1) {
      const x = this.x(zero + n * step);
      pen.fillStyle = ink.line;
      pen.fillRect(x, AXIS - 7, 1, 7);
      pen.globalAlpha = 0.45;
      pen.fillRect(x, AXIS, 1, this.visible);
      pen.globalAlpha = 1;
      pen.fillStyle = ink.soft;
      pen.fillText(timeText(n * step, step), x + 4, 12);
    }
    pen.fillStyle = ink.soft;
    pen.fillText(`${durationText(this.view.to - this.view.from)} shown`, 8, 12);
    pen.fillStyle = ink.line;
    pen.fillRect(0, AXIS - 1, this.width, 1);
  }

  // How busy everything is over the whole time; drawn once, the frame of the view over it each time.
  drawMini(ink) {
    const pen = this.mini.getContext("2d");
    const { from, to } = this.model.extent;
    if (this.miniPicture === null || this.miniInk !== ink.card) {
      this.miniInk = ink.card;
      this.miniPicture = new Float64Array(Math.max(1, Math.ceil(this.span)));
      const pixel = (to - from) / this.miniPicture.length;
      const counted = this.model.working.length ? this.model.working : this.model.tracks;
      for (const track of counted) {
        for (let i = 0; i < track.count; i += 1) {
          const low = Math.max(0, Math.floor((track.start[i] - from) / pixel));
          const high = Math.min(this.miniPicture.length - 1, Math.floor((track.end[i] - from) / pixel));
          for (let column = low; column <= high; column += 1) {
            const begin = from + column * pixel;
            const busy = Math.min(track.end[i], begin + pixel) - Math.max(track.start[i], begin);
            this.miniPicture[column] += busy / pixel / counted.length;
          }
        }
      }
    }
    pen.fillStyle = ink.row;
    pen.fillRect(0, 0, this.width, MINI);
    pen.fillStyle = ink.soft;
    pen.globalAlpha = 0.6;
    this.miniPicture.forEach((busy, column) => {
      const size = Math.min(1, busy) * (MINI - 6);
      if (size > 0) pen.fillRect(GUTTER + column, MINI - 2 - Math.max(1, size), 1, Math.max(1, size));
    });
    pen.globalAlpha = 1;
    pen.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    pen.textBaseline = "middle";
    pen.fillText("busy, whole time", 8, MINI / 2);
    const place = (time) => GUTTER + ((time - from) / (to - from)) * this.span;
    const left = place(this.view.from);
    const right = Math.max(left + 3, place(this.view.to));
    pen.fillStyle = ink.accent;
    pen.globalAlpha = 0.18;
    pen.fillRect(left, 0, right - left, MINI);
    pen.globalAlpha = 1;
    pen.strokeStyle = ink.accent;
    pen.lineWidth = 1;
    pen.strokeRect(left + 0.5, 0.5, right - left - 1, MINI - 1);
  }
}
