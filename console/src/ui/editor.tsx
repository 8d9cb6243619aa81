// YAML of an object: shown, edited, and judged by the API server while it is being written.

import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { get, Refusal, send } from "../api";
import type { Resource } from "../objects";
import { edits, library, mistakes as mistakesOf, read, write, type Mistake } from "../yaml-object";
import type * as Yaml from "../yaml";
import { Button } from "./parts";

const PAUSE = 500;
const LINE_HEIGHT = 20;

/** Text with numbered lines; those with mistakes are marked, and the mistakes stand below. */
export function Code(props: { text: string; mistakes: Mistake[]; area?: RefObject<HTMLTextAreaElement | null>; onText?: (text: string) => void }) {
  const own = useRef<HTMLTextAreaElement>(null);
  const area = props.area ?? own;
  const gutter = useRef<HTMLDivElement>(null);
  const lines = props.text.split("\n");
  const marked = new Set(props.mistakes.map((mistake) => mistake.line));
  const show = (line: number) => {
    const it = area.current;
    if (!it) return;
    const at = lines.slice(0, line - 1).reduce((sum, one) => sum + one.length + 1, 0);
    it.focus();
    it.setSelectionRange(at, at + (lines[line - 1]?.length ?? 0));
    it.scrollTop = Math.max(0, (line - 5) * LINE_HEIGHT);
  };
  return (
    <>
      <div class="code">
        <div class="gutter" ref={gutter} aria-hidden="true">
          {lines.map((_, n) => <div class={marked.has(n + 1) ? "mark" : undefined}>{n + 1}</div>)}
        </div>
        <textarea
          ref={area} value={props.text} readOnly={!props.onText} spellcheck={false} wrap="off" aria-label="YAML"
          aria-invalid={props.mistakes.length > 0} aria-describedby="mistakes"
          onInput={(event) => props.onText?.(event.currentTarget.value)}
          onScroll={() => { if (gutter.current && area.current) gutter.current.scrollTop = area.current.scrollTop; }}
        />
      </div>
      <ul class="mistakes" id="mistakes" aria-live="polite">
        {props.mistakes.map((mistake) => (
          <li>
            {mistake.line !== null && <button type="button" class="jump" onClick={() => show(mistake.line ?? 1)}>line {mistake.line}</button>}
            {mistake.field && <code>{mistake.field}</code>} {mistake.message}
          </li>
        ))}
      </ul>
    </>
  );
}

export function Editor(props: { object: Resource; path: string; onSaved?: (object: Resource) => void }) {
  const [yaml, setYaml] = useState<typeof Yaml | null>(null);
  const [text, setText] = useState("");
  const [base, setBase] = useState<Resource>(props.object);
  const [editing, setEditing] = useState(false);
  const [mistakes, setMistakes] = useState<Mistake[]>([]);
  const [state, setState] = useState("");
  const area = useRef<HTMLTextAreaElement>(null);
  const judged = useRef(0);
  const saving = useRef(false);
  useEffect(() => void library().then((loaded) => setYaml(loaded)), []);
  // What is only looked at stays current; what is being edited is left alone.
  useEffect(() => {
    if (!yaml || editing) return;
    setBase(props.object);
    setText(write(yaml, props.object));
  }, [yaml, props.object, editing]);

  const judge = async (candidate: string, save: boolean) => {
    // While something is saved nothing else is judged: the answer would be taken for an old one.
    if (!yaml || saving.current) return;
    const number = ++judged.current;
    const outcome = read(yaml, candidate);
    if (!outcome.object) {
      setMistakes(outcome.mistakes);
      setState("");
      return;
    }
    setState(save ? "Saving…" : "Checking…");
    saving.current = save;
    try {
      // Only what was edited is sent, as by `kubectl edit`: controllers write the status of what is alive all the time.
      const path = `${props.path}?fieldValidation=Strict&fieldManager=agentcube-console${save ? "" : "&dryRun=All"}`;
      const stored = await send<Resource>("PATCH", path, edits(base, outcome.object) ?? {}, "application/merge-patch+json");
      if (number !== judged.current) return;
      setMistakes([]);
      setState(save ? "Saved." : "Valid.");
      if (save) {
        setEditing(false);
        setBase(stored);
        setText(write(yaml, stored));
        props.onSaved?.(stored);
      }
    } catch (error) {
      if (number !== judged.current) return;
      const refusal = error instanceof Refusal ? error : new Refusal(0, String(error));
      setState("");
      setMistakes(mistakesOf(yaml, candidate, refusal));
    } finally {
      if (save) saving.current = false;
    }
  };
  useEffect(() => {
    if (!editing) return;
    const timer = setTimeout(() => void judge(text, false), PAUSE);
    return () => clearTimeout(timer);
  }, [text, editing]);

  /** What was said of the text before is not said of this one. */
  const change = (next: string) => {
    setState("");
    setText(next);
  };
  const discard = async () => {
    judged.current += 1;
    setMistakes([]);
    setState("");
    setEditing(false);
    if (yaml) setText(write(yaml, base));
    try {
      props.onSaved?.(await get<Resource>(props.path));
    } catch {
      // What is shown is what was known; the watch brings the rest.
    }
  };
  if (!yaml) return <div class="empty">Loading…</div>;
  return (
    <div class="editor">
      <div class="bar">
        <span class="dim" role="status">{state || (editing ? "Editing" : "Live; changes when the object does")}</span>
        <div class="actions">
          {editing
            ? <>
                <Button onClick={() => void discard()}>Discard</Button>
                <Button kind="main" onClick={() => void judge(text, true)} disabled={mistakes.length > 0}>Save</Button>
              </>
            : <Button onClick={() => { setEditing(true); setState(""); area.current?.focus(); }}>Edit</Button>}
        </div>
      </div>
      <Code text={text} mistakes={mistakes} area={area} {...(editing ? { onText: change } : {})} />
    </div>
  );
}
