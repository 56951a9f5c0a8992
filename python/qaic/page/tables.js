// Tables and commands that are complete without this script; it lets people sort, filter and copy them.

const tables = {
  enhance(root) {
    for (const block of root.querySelectorAll(".table-block")) tables.enhanceBlock(block);
    for (const line of root.querySelectorAll(".commands li")) {
      line.append(tables.copyButton("Copy the command", () => line.querySelector(":scope > code").textContent));
    }
    for (const cell of root.querySelectorAll("td.share")) {
      const share = Math.min(100, Math.max(0, Number(cell.dataset.v)));
      if (Number.isFinite(share)) cell.style.setProperty("--share", String(share));
    }
  },

  enhanceBlock(block) {
    const table = block.querySelector("table");
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.title = "Sort by this column";
      button.addEventListener("click", () => tables.sort(heads, body, column));
      head.append(button);
    });

    const tools = block.querySelector(".tools");
    const count = tools.querySelector(".count");
    const total = count.textContent;
    const filter = document.createElement("input");
    filter.type = "search";
    filter.placeholder = "Filter rows";
    filter.setAttribute("aria-label", "Filter rows of " + table.dataset.title);
    filter.addEventListener("input", () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        // Long names are shown without their middle.
        const text = [...row.cells].map((cell) => cell.title || cell.textContent).join(" ").toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        if (!row.hidden) shown += 1;
      }
      count.textContent = words.length ? `${shown} of ${total}` : total;
    });
    const copy = tables.copyButton("Copy the rows that are shown, as columns divided by tabs", () => tables.asText(table));
    if (rows.length > 8) tools.append(filter);
    count.classList.add("push");
    tools.append(count, copy);
    table.dataset.ready = String(rows.length);
  },

  sort(heads, body, column) {
    const head = heads[column];
    const numeric = head.classList.contains("n");
    const before = head.getAttribute("aria-sort");
    // Numbers are most interesting from the largest, names from the first.
    const order = before ? (before === "ascending" ? "descending" : "ascending") : numeric ? "descending" : "ascending";
    const sign = order === "ascending" ? 1 : -1;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order);
    const keyed = [...body.rows].map((row) => {
      const cell = row.cells[column];
      const value = numeric ? Number(cell.dataset.v ?? NaN) : cell.title || cell.textContent;
      return [value, row];
    });
    const text = new Intl.Collator(undefined, { numeric: true });
    keyed.sort(([a], [b]) => {
      if (!numeric) return sign * text.compare(a, b);
      // What was not measured is last in both orders.
      if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b);
      return sign * (a - b);
    });
    body.append(...keyed.map(([, row]) => row));
  },

  copyButton(title, text) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Copy";
    button.title = title;
    button.addEventListener("click", async () => {
      const done = await tables.copyText(text());
      button.textContent = done ? "Copied" : "Select and copy by hand";
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
    return button;
  },

  asText(table) {
    const rows = [...table.tHead.rows, ...table.tBodies[0].rows].filter((row) => !row.hidden);
    const clean = (cell) => (cell.dataset.v ?? cell.textContent).replace(/[\t\r\n]+/g, " ").trim();
    return rows.map((row) => [...row.cells].map(clean).join("\t")).join("\n") + "\n";
  },

  async copyText(text) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      // Pages from a file may not use the clipboard object everywhere; the older way needs no permission.
      const area = document.createElement("textarea");
      area.value = text;
      area.className = "silent";
      document.body.append(area);
      area.select();
      const done = document.execCommand("copy");
      area.remove();
      return done;
    }
  },

  // Rows whose first text cells name one of these, marked; the first is returned.
  find(names) {
    for (const row of document.querySelectorAll("tr.found")) row.classList.remove("found");
    const wanted = new Set(names.filter(Boolean));
    let first = null;
    for (const body of document.querySelectorAll("table tbody")) {
      for (const row of body.rows) {
        const named = [...row.cells].some((cell) => cell.classList.contains("t") && wanted.has(cell.dataset.v ?? cell.textContent));
        if (!named) continue;
        row.classList.add("found");
        first ??= row;
      }
    }
    return first;
  },

  reveal(row) {
    if (!row) return false;
    row.hidden = false;
    const part = row.closest("details");
    if (part) part.open = true;
    row.scrollIntoView({ block: "center" });
    row.tabIndex = -1;
    row.focus({ preventScroll: true });
    return true;
  },
};
