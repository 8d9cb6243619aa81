// The YAML library, loaded when somebody looks at YAML for the first time.
export { parseDocument, stringify, LineCounter, isMap, isSeq, isScalar, isPair } from "yaml";
