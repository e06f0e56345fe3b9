"use strict";
// Draws the charts, sorts and filters the table, copies commands. Colours are the style sheet's.

for (const place of document.querySelectorAll(".plot")) {
  const source = document.getElementById("figure-" + place.dataset.figure);
  const figure = JSON.parse(source.textContent);
  Plotly.newPlot(place, figure.data, figure.layout, {responsive: true, displayModeBar: false});
}

const table = document.getElementById("all");
if (table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];

  // Numbers by size, texts by letter; what has no value stays last whichever way is sorted.
  const compare = (a, b, sign) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const numbers = [Number(a), Number(b)];
    if (numbers.some(Number.isNaN)) return sign * a.localeCompare(b);
    return sign * (numbers[0] - numbers[1]);
  };

  const sortBy = (head, column) => {
    const ascending = head.getAttribute("aria-sort") !== "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const key = (row) => row.cells[column].dataset.sort;
    const rows = [...body.rows].sort((a, b) => compare(key(a), key(b), ascending ? 1 : -1));
    body.append(...rows);
  };
  heads.forEach((head, column) => {
    head.addEventListener("click", () => sortBy(head, column));
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter") sortBy(head, column);
    });
  });

  const count = document.getElementById("count");
  document.getElementById("filter").addEventListener("input", (event) => {
    const words = event.target.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of body.rows) {
      const text = row.textContent.toLowerCase();
      // "feasible" alone must not find "infeasible".
      row.hidden = !words.every((word) => new RegExp("(^|\\W)" + escapeText(word)).test(text));
      shown += row.hidden ? 0 : 1;
    }
    count.textContent = words.length
      ? shown + " of " + body.rows.length + " trials" : count.dataset.all;
  });
}

function escapeText(text) {
  return text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    const command = button.parentElement.querySelector("pre");
    try {
      await navigator.clipboard.writeText(command.textContent);
      button.textContent = "copied";
    } catch {
      // A page opened as a file may not reach the clipboard everywhere: select the text instead.
      getSelection().selectAllChildren(command);
      button.textContent = "selected";
    }
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
