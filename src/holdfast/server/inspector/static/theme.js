// Light, dark, or the system's theme. The choice is stored in this browser.

const KEY = "holdfast-theme";
const THEMES = ["system", "light", "dark"];

export function startTheme(fieldset, onChange) {
  const apply = (choice) => {
    if (choice === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = choice;
    onChange();
  };
  fieldset.addEventListener("change", ({ target }) => {
    try { localStorage.setItem(KEY, target.value); } catch { /* not stored: it lasts until the page is closed */ }
    apply(target.value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  const choice = THEMES.includes(stored()) ? stored() : "system";
  fieldset.querySelector(`[value=${choice}]`).checked = true;
  apply(choice);
}

function stored() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}
