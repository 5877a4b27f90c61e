// The bytes of dmviz/ui/player/wire.py, read back: settings, header and typed arrays.

const TYPES = {
  u1: Uint8Array, u2: Uint16Array, i4: Int32Array, u4: Uint32Array, f4: Float32Array, f8: Float64Array,
};
const text = new TextDecoder();

/** Code of a number that is not finite. */
export const MISSING = 65535;

function block(bytes, at, magic) {
  const found = String.fromCharCode(...bytes.subarray(at, at + 4));
  if (found !== magic) throw new Error(`player: expected ${magic}, got ${found}`);
  const length = new DataView(bytes.buffer, bytes.byteOffset + at + 4, 4).getUint32(0, true);
  const start = at + 8;
  return { json: JSON.parse(text.decode(bytes.subarray(start, start + length))), end: start + length };
}

/**
 * Read a message of Python.
 * @param {Uint8Array} message at any alignment
 * @returns {{settings: object, header: object, arrays: Object<string, {data: any, shape: number[]}>, lanes?: object[]}}
 *   `lanes` instead of header and arrays where there are several runs: one {header, arrays} each
 */
export function read(message) {
  const bytes = message.slice(); // typed arrays need an aligned buffer; Streamlit's view starts anywhere
  const { json: settings, end } = block(bytes, 0, "DMVP");
  if (settings.chunks) {
    let at = end;
    const lanes = settings.chunks.map((length) => opened(bytes, (at += length) - length, length));
    return { settings, header: null, arrays: {}, lanes };
  }
  return { settings, ...opened(bytes, end, bytes.length - end) };
}

/** The chunk of `length` bytes at a place; no header where there is none. */
function opened(bytes, at, length) {
  if (length === 0) return { header: null, arrays: {} };
  const chunk = block(bytes, at, "DMV1");
  const arrays = {};
  for (const [name, kind, shape, offset] of chunk.json.arrays) {
    const count = shape.reduce((a, b) => a * b, 1);
    arrays[name] = { data: new TYPES[kind](bytes.buffer, chunk.end + offset, count), shape };
  }
  return { header: chunk.json, arrays };
}
