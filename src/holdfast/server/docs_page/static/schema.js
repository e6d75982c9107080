// Reads JSON schemas of the OpenAPI document: types as text, fields as rows, example values.

const SAMPLES = {
  messages: [{ role: "user", content: "What is a holdfast?" }],
  prompt: "The sea is",
  completion: " blue",
  input: "The sea is",
  tokens: [1, 2, 3],
  max_tokens: 16,
};

export class Schemas {
  constructor(document) {
    this.models = document.components?.schemas ?? {};
  }

  // A reference's target, and the name of its model.
  resolve(schema) {
    const name = schema?.$ref?.split("/").pop();
    return name === undefined ? { schema: schema ?? {} } : { schema: this.models[name] ?? {}, name };
  }

  // The variants of a union without null; of another schema only itself.
  variants(schema) {
    const all = schema.anyOf ?? schema.oneOf ?? [schema];
    return all.filter((one) => one.type !== "null");
  }

  type(given) {
    const { schema, name } = this.resolve(given);
    if (name !== undefined) return name;
    if (schema.anyOf ?? schema.oneOf) return this.variants(schema).map((one) => this.type(one)).join(" | ");
    if (schema.allOf) return schema.allOf.map((one) => this.type(one)).join(" & ");
    if (schema.const !== undefined) return JSON.stringify(schema.const);
    if (schema.enum) return schema.enum.map((one) => JSON.stringify(one)).join(" | ");
    const type = [schema.type ?? "any"].flat().filter((one) => one !== "null").join(" | ");
    return type === "array" ? `array of ${this.type(schema.items)}` : type;
  }

  // What is said of a value besides its type.
  notes(given) {
    const { schema } = this.resolve(given);
    const limits = this.variants(schema).map((one) => {
      const low = one.minimum ?? one.exclusiveMinimum, high = one.maximum ?? one.exclusiveMaximum;
      const length = one.maxLength ?? one.maxItems ?? one.maxProperties;
      return [
        low === undefined ? "" : `${one.minimum === undefined ? ">" : "≥"} ${low}`,
        high === undefined ? "" : Number.isInteger(high) && !Number.isSafeInteger(high) ? `< 2^${Math.round(Math.log2(high))}` : `${one.maximum === undefined ? "<" : "≤"} ${high}`,
        length === undefined ? "" : `at most ${length} long`,
      ].filter(Boolean).join(", ");
    });
    const standard = schema.default === undefined || schema.default === null ? "" : `Default: ${JSON.stringify(schema.default)}.`;
    return [given.description ?? schema.description ?? "", standard, [...new Set(limits)].filter(Boolean).join("; ")].filter(Boolean).join(" ");
  }

  // The models that a value may hold, by name.
  inner(given, found = new Set()) {
    const { schema, name } = this.resolve(given);
    if (name !== undefined) {
      if (schema.properties) found.add(name);
      return found;
    }
    for (const one of [...(schema.anyOf ?? schema.oneOf ?? schema.allOf ?? []), ...(schema.items ? [schema.items] : [])]) this.inner(one, found);
    return found;
  }

  fields(given) {
    const { schema } = this.resolve(given);
    const required = new Set(schema.required ?? []);
    const rows = Object.entries(schema.properties ?? {}).map(([name, field]) => ({ name, field, required: required.has(name) }));
    return rows.sort((one, other) => other.required - one.required);
  }

  // A small valid value: the required fields, and max_tokens where there is one.
  example(given, name = "") {
    if (SAMPLES[name] !== undefined) return SAMPLES[name];
    const { schema } = this.resolve(given);
    if (schema.const !== undefined) return schema.const;
    if (schema.enum) return schema.enum[0];
    if (schema.anyOf ?? schema.oneOf) return this.example(this.variants(schema)[0] ?? {});
    if (schema.type === "array") return [];
    if (schema.type === "integer" || schema.type === "number") return schema.minimum ?? 0;
    if (schema.type === "boolean") return false;
    if (schema.type === "string") return "";
    const shown = this.fields(given).filter((one) => one.required || one.name === "max_tokens");
    const some = shown.length > 0 ? shown : this.fields(given).filter((one) => SAMPLES[one.name] !== undefined).slice(0, 1);
    return Object.fromEntries(some.map((one) => [one.name, this.example(one.field, one.name)]));
  }
}
