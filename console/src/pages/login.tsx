import { useEffect, useRef, useState } from "preact/hooks";
import { logIn, Refusal, type Who } from "../api";
import { Button, Field } from "../ui/parts";

/** The token of a kubeconfig's current user, if it has one. */
export function tokenOf(kubeconfig: string): string | null {
  const found = /^\s*token:\s*["']?([^\s"']+)["']?\s*$/m.exec(kubeconfig);
  return found?.[1] ?? null;
}

export function Login(props: { onIn: (who: Who) => void; why: string }) {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(props.why);
  const [busy, setBusy] = useState(false);
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    document.title = "Log in · AgentCube";
    input.current?.focus();
  }, []);
  const submit = async (text: string) => {
    setBusy(true);
    setProblem("");
    try {
      props.onIn(await logIn(text.trim()));
    } catch (error) {
      setProblem(error instanceof Refusal ? error.message : String(error));
      setBusy(false);
      input.current?.focus();
    }
  };
  const read = async (file: File | undefined) => {
    if (!file) return;
    if (file.size > 1 << 20) return setProblem("This file is too large to be a kubeconfig.");
    const found = tokenOf(await file.text());
    if (found) await submit(found);
    else setProblem("This kubeconfig has no token in it. Tokens of other kinds of users: kubectl create token.");
  };
  return (
    <main class="login">
      <form onSubmit={(event) => { event.preventDefault(); void submit(token); }}>
        <img src="/assets/icon.svg" alt="" width="40" height="40" />
        <h1>AgentCube</h1>
        <p class="dim">Log in with a token that the API server knows.</p>
        {problem && <div class="notice bad" role="alert"><p>{problem}</p></div>}
        <Field label="Token">
          <input ref={input} type="password" autocomplete="off" spellcheck={false} required value={token}
            aria-invalid={problem !== ""} onInput={(event) => setToken(event.currentTarget.value)} />
        </Field>
        <Button type="submit" kind="main" disabled={busy}>{busy ? "Logging in…" : "Log in"}</Button>
        <Field label="or choose a kubeconfig" hint="Only its token is used; the file stays in your browser. agentcube up prints where it has its own.">
          <input type="file" onChange={(event) => void read(event.currentTarget.files?.[0])} />
        </Field>
      </form>
    </main>
  );
}
