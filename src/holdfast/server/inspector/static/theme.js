// Light, dark, or the system's theme. The choice is stored in this browser.

const KEY = "holdfast-theme";
const ORDER = ["system", "light", "dark"];

export function startTheme(button, onChange) {
  let choice = ORDER.includes(stored()) ? stored() : "system";
  const apply = () => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    button.textContent = `Theme: ${choice}`;
    onChange();
  };
  button.addEventListener("click", () => {
    choice = ORDER[(ORDER.indexOf(choice) + 1) % ORDER.length];
    try { localStorage.setItem(KEY, choice); } catch { /* not stored: it lasts until the page is closed */ }
    apply();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  apply();
}

function stored() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}
