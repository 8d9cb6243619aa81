// The pages that bundles are made of. Built into one module that needs nothing else; the forge bundles it with the manifest
// of an integration. It runs in a frame, and reaches the cluster by `host` only.

import { render } from "preact";
import { CrdTable, type TableProps } from "./crd-table";
import type { Host, Page } from "./host";
import { dress } from "./style";

interface Manifest {
  pages?: { id: string; entryComponent: string; props?: unknown }[];
}

/** Shows a page of a manifest; the returned function takes it away. */
export function mount(root: HTMLElement, host: Host, page: Page, manifest: Manifest): () => void {
  const found = manifest.pages?.find((one) => one.id === page.id);
  if (!found) throw new Error(`the manifest has no page ${page.id}`);
  const undress = dress(document);
  switch (found.entryComponent) {
    case "CrdTable":
      render(<CrdTable host={host} page={page} props={found.props as TableProps} />, root);
      break;
    case "Iframe":
      render(<Iframe src={String((found.props as { src?: unknown } | undefined)?.src ?? "")} />, root);
      break;
    default:
      undress();
      throw new Error(`this library has no page ${found.entryComponent}`);
  }
  return () => {
    render(null, root);
    undress();
  };
}

/** Another site. The console shows such pages by a document of its own; elsewhere it is a frame in a frame. */
function Iframe(props: { src: string }) {
  return <iframe class="site" title="Site" src={props.src} referrerpolicy="no-referrer" />;
}
