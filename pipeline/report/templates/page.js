document.querySelectorAll("table.sorts").forEach(table => {
  const body = table.tBodies[0], original = [...body.rows];
  const key = (row, column) => row.cells[column].dataset.key;
  table.querySelectorAll("th button").forEach((button, column) => button.addEventListener("click", () => {
    const head = button.parentElement, next = {none: "ascending", ascending: "descending", descending: "none"}[head.ariaSort || "none"];
    table.querySelectorAll("thead th").forEach(other => other.setAttribute("aria-sort", "none"));
    head.setAttribute("aria-sort", next);
    const sign = next === "descending" ? -1 : 1;
    const order = (a, b) => {
      const [x, y] = [key(a, column), key(b, column)];
      if (x === "" || y === "") return (x === "") - (y === "");
      return sign * (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
    };
    (next === "none" ? original : [...body.rows].sort(order)).forEach(row => body.append(row));
  }));
});
document.querySelectorAll("input[data-filters]").forEach(input => input.addEventListener("input", () => {
  const rows = document.getElementById(input.dataset.filters).tBodies[0].rows, wanted = input.value.toLowerCase();
  for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
}));
const scrolling = document.querySelectorAll(".scroll, .long, .chart, pre");
const reachable = () => scrolling.forEach(part => {
  const more = part.scrollWidth > part.clientWidth + 1 || part.scrollHeight > part.clientHeight + 1;
  if (more) part.tabIndex = 0; else part.removeAttribute("tabindex");
});
const opened = () => {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  for (let part = target; part; part = part.parentElement) if (part.tagName === "DETAILS") part.open = true;
  if (target) target.scrollIntoView();
};
addEventListener("resize", reachable);
addEventListener("toggle", reachable, true);
addEventListener("hashchange", opened);
addEventListener("beforeprint", () => document.querySelectorAll("#why + details, .all-warnings").forEach(part => part.open = true));
reachable();
opened();
