// A terminal by xterm.js, loaded when somebody opens one for the first time.

import { Terminal } from "@xterm/xterm";

// The policy of our pages forbids markup with styles in it. xterm.js makes elements of style and attributes of style; both
// are given to the browser as what they mean instead, which no policy has to allow.
const create = document.createElement.bind(document);
document.createElement = ((name: string, options?: ElementCreationOptions) => {
  const element = create(name, options);
  if (name === "style") {
    const sheet = new CSSStyleSheet();
    document.adoptedStyleSheets = [...document.adoptedStyleSheets, sheet];
    Object.defineProperty(element, "textContent", { set: (text: string) => sheet.replaceSync(text), get: () => "" });
    const remove = element.remove.bind(element);
    element.remove = () => {
      document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== sheet);
      remove();
    };
  } else if (name === "span") {
    const set = element.setAttribute.bind(element);
    element.setAttribute = (attribute: string, value: string) => {
      if (attribute === "style") element.style.cssText = value;
      else set(attribute, value);
    };
  }
  return element;
}) as typeof document.createElement;

export interface Size {
  columns: number;
  rows: number;
}

export interface Screen {
  size(): Size;
  write(bytes: Uint8Array): void;
  say(text: string): void;
  focus(): void;
  close(): void;
}

const LIGHT = { background: "#fbfcfd", foreground: "#1b2029", cursor: "#3552d8", cursorAccent: "#ffffff", selectionBackground: "#c5cff5", black: "#1b2029", brightBlack: "#5a6473", red: "#b3261e", green: "#0f7a43", yellow: "#8a5a00", blue: "#3552d8", magenta: "#8a2f8f", cyan: "#0b7285", white: "#5a6473", brightWhite: "#1b2029" };
const DARK = { background: "#12151a", foreground: "#e6e9ef", cursor: "#8fa5ff", cursorAccent: "#10131c", selectionBackground: "#38426b" };

/** Opens a screen in an element, which it fills. */
export function open(parent: HTMLElement, on: { typed: (bytes: Uint8Array) => void; resized: (size: Size) => void }): Screen {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => (dark.matches ? DARK : LIGHT);
  const terminal = new Terminal({
    cursorBlink: !matchMedia("(prefers-reduced-motion: reduce)").matches, scrollback: 5000, screenReaderMode: true, theme: theme(), minimumContrastRatio: 4.5,
    fontFamily: 'ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", Menlo, Consolas, monospace', fontSize: 13,
  });
  terminal.open(parent);
  const words = new TextEncoder();
  terminal.onData((text) => on.typed(words.encode(text)));
  terminal.onBinary((text) => on.typed(Uint8Array.from(text, (sign) => sign.charCodeAt(0))));
  // As many columns and rows as there is room for, by the size of one.
  const fit = () => {
    const screen = parent.querySelector<HTMLElement>(".xterm-screen");
    if (!screen || !parent.clientWidth) return;
    const [width, height] = [screen.clientWidth / terminal.cols, screen.clientHeight / terminal.rows];
    if (!(width > 0) || !(height > 0)) return;
    const columns = Math.max(20, Math.floor((parent.clientWidth - 40) / width));
    const rows = Math.max(5, Math.floor((parent.clientHeight - 20) / height));
    if (columns !== terminal.cols || rows !== terminal.rows) terminal.resize(columns, rows);
  };
  fit();
  terminal.onResize(({ cols, rows }) => on.resized({ columns: cols, rows }));
  const watcher = new ResizeObserver(fit);
  watcher.observe(parent);
  const dressed = () => { terminal.options.theme = theme(); };
  dark.addEventListener("change", dressed);
  return {
    size: () => ({ columns: terminal.cols, rows: terminal.rows }),
    write: (bytes) => terminal.write(bytes),
    say: (text) => terminal.write(`\r\n\x1b[2m${text}\x1b[0m\r\n`),
    focus: () => terminal.focus(),
    close: () => {
      watcher.disconnect();
      dark.removeEventListener("change", dressed);
      terminal.dispose();
    },
  };
}
