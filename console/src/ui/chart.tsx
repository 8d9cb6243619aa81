// Charts, drawn as lines in a picture. Each has its numbers as words besides: a picture alone tells nothing to who cannot see it.

export interface Series {
  name: string;
  /** The tone of its line, one of six. */
  tone: number;
  points: { at: number; value: number | null }[];
}

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [600, 170, 54, 20];

/** Round steps up to a number. */
export function steps(most: number): number[] {
  if (!(most > 0)) return [0, 1];
  const power = 10 ** Math.floor(Math.log10(most / 3));
  const step = [1, 2, 5, 10].map((one) => one * power).find((one) => most / one <= 4) ?? power * 10;
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, n) => n * step);
}

export function Lines(props: { label: string; series: Series[]; from: number; to: number; write: (value: number) => string }) {
  const values = props.series.flatMap((one) => one.points.flatMap((point) => point.value ?? []));
  const marks = steps(Math.max(0, ...values));
  const top = marks.at(-1) ?? 1;
  const x = (at: number) => LEFT + ((at - props.from) / Math.max(1, props.to - props.from)) * (WIDTH - LEFT - 8);
  const y = (value: number) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - BOTTOM - 10);
  const path = (points: Series["points"]) => {
    let pen = false;
    return points.map(({ at, value }) => {
      if (value === null) {
        pen = false;
        return "";
      }
      const move = `${pen ? "L" : "M"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
      pen = true;
      return move;
    }).join("");
  };
  const shown = props.series.filter((one) => one.points.some((point) => point.value !== null));
  const last = shown.map((one) => { const point = one.points.findLast(({ value }) => value !== null); return `${one.name} ${props.write(point?.value ?? 0)}`; });
  const minutes = Math.round((props.to - props.from) / 60_000);
  return (
    <figure class="chart">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${props.label}: ${last.join(", ") || "nothing yet"}`}>
        {marks.map((mark) => (
          <g>
            <line class="mark" x1={LEFT} x2={WIDTH - 8} y1={y(mark)} y2={y(mark)} />
            <text x={LEFT - 8} y={y(mark) + 4} text-anchor="end">{props.write(mark)}</text>
          </g>
        ))}
        <text x={LEFT} y={HEIGHT - 4}>{minutes > 0 ? `${minutes} min ago` : "just now"}</text>
        <text x={WIDTH - 8} y={HEIGHT - 4} text-anchor="end">now</text>
        {shown.map((one) => {
          const points = one.points.filter((point): point is { at: number; value: number } => point.value !== null);
          return (
            <g class={`tone-${one.tone}`}>
              <path d={path(one.points)} fill="none" />
              {points.slice(-1).map((point) => <circle cx={x(point.at)} cy={y(point.value)} r={3} />)}
            </g>
          );
        })}
      </svg>
      <figcaption>
        {shown.map((one) => <span class={`key tone-${one.tone}`}><span class="swatch" aria-hidden="true" />{one.name}</span>)}
      </figcaption>
    </figure>
  );
}

/** Shares of a whole, as one bar. */
export function Shares(props: { label: string; parts: { name: string; tone: number; value: number }[] }) {
  const whole = props.parts.reduce((sum, part) => sum + part.value, 0);
  const shown = props.parts.filter((part) => part.value > 0);
  let at = 0;
  return (
    <svg class="shares" viewBox="0 0 600 18" preserveAspectRatio="none" role="img" aria-label={`${props.label}: ${shown.map((part) => `${part.name} ${part.value}`).join(", ") || "nothing yet"}`}>
      <rect class="ground" x={0} y={0} width={600} height={18} />
      {shown.map((part) => {
        const width = (part.value / whole) * 600;
        const from = at;
        at += width;
        return <rect class={`tone-${part.tone}`} x={from} y={0} width={width} height={18} />;
      })}
    </svg>
  );
}

/** What happened one after another, each part from where it began. */
export function Timeline(props: { label: string; whole: number; parts: { name: string; tone: number; from: number; to: number }[]; write: (value: number) => string }) {
  const x = (value: number) => (props.whole > 0 ? (value / props.whole) * 600 : 0);
  return (
    <svg class="shares" viewBox="0 0 600 18" preserveAspectRatio="none" role="img" aria-label={`${props.label}: ${props.parts.map((part) => `${part.name} after ${props.write(part.to)}`).join(", ")}`}>
      <rect class="ground" x={0} y={0} width={600} height={18} />
      {props.parts.map((part) => <rect class={`tone-${part.tone}`} x={x(part.from)} y={0} width={Math.max(2, x(part.to) - x(part.from))} height={18} />)}
    </svg>
  );
}
