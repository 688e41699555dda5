// A vehicle in a browser: sends pictures to a Skylane worker over MQTT on websockets, and reads the masks.
// Needs mqtt.js and MessagePack for JavaScript, loaded before it (see index.html). What is sent: docs/reference/protocol.md.
"use strict";

const Skylane = (() => {
  const PREFIX = "skylane/v1";
  const FRAME_TYPE = "application/vnd.skylane.frame+msgpack";
  const CAMERA = "page";
  const MOST_PIXELS = 1 << 25; // As the worker: no mask is larger.
  const WIDE = { useBigInt64: true }; // Nanoseconds since 1970 are beyond what a number holds.

  /** Connects to a broker, "ws://host:9001". Rejects where nothing answers in time. */
  async function connect(url, { vehicle = "browser", timeoutMs = 10_000 } = {}) {
    const options = { protocolVersion: 5, connectTimeout: timeoutMs, reconnectPeriod: 0 };
    const broker = await mqtt.connectAsync(url, options, false).catch(() => {
      throw new Error(`no broker at ${url}: is it there, and does it take websockets?`);
    });
    const client = new Client(broker, vehicle, timeoutMs);
    const topics = [`${PREFIX}/status/worker/+`, `${PREFIX}/masks/${vehicle}/${CAMERA}`];
    const silent = `the broker at ${url} acknowledges no subscription within ${timeoutMs} ms: is it one of MQTT 5?`;
    await within(timeoutMs, silent, broker.subscribeAsync(topics, { qos: 1 })).catch((error) => {
      broker.end(true);
      throw error;
    });
    return client;
  }

  class Client {
    #broker;
    #vehicle;
    #timeoutMs;
    #session = crypto.getRandomValues(new Uint32Array(2)).join("");
    #sequence = 0;
    #unacknowledged = 0; // Frames that the broker may never take: a farewell would wait for them.
    #workers = new Map(); // Their model cards, by the worker's name.
    #waiting = new Map(); // Who waits for an answer, by the frame's id.
    #announced = new EventTarget();

    constructor(broker, vehicle, timeoutMs) {
      [this.#broker, this.#vehicle, this.#timeoutMs] = [broker, vehicle, timeoutMs];
      broker.on("message", (topic, payload) => this.#heard(topic, payload));
    }

    /** The card of a model, as a worker announces it: input size, resize, labels with their colours. */
    async card(model) {
      const found = () => [...this.#workers.values()].flat().find((card) => card.name === model);
      const announced = new Promise((resolve) => {
        const look = () => found() && resolve(found());
        this.#announced.addEventListener("worker", look);
        look();
      });
      return within(this.#timeoutMs, `no worker announces model ${model}: is one running, on this broker?`, announced);
    }

    /**
     * Sends a picture, a Blob of a JPEG or PNG, and gives its mask: {mask, height, width, card, answer, stages}.
     * `mask`: a Uint8Array of class ids, row by row; 255 is what the model did not see. `size`: "frame", of the
     * picture's size, or "model". `stages`: pairs of name and milliseconds. Rejects with the reason where no mask came.
     */
    async send(picture, { model = "road-small", size = "frame", deadlineMs = null } = {}) {
      const due = now();
      const card = await this.card(model);
      if (card.task !== "segmentation") throw new Error(`model ${model} answers ${card.task}: this page reads masks`);
      const data = new Uint8Array(await picture.arrayBuffer());
      const { codec, height, width } = readHeader(data);
      const id = `${this.#vehicle}/${CAMERA}/${this.#session}/${this.#sequence++}`;
      const node = `edge/${this.#vehicle}/${this.#session}`;
      const message = {
        v: 1,
        id,
        attempt: 1,
        model,
        frame_stamp_ns: due,
        budget_ms: deadlineMs,
        layout: "rgb8",
        shape: [height, width, 3],
        dtype: "uint8",
        codec,
        geometry: plan(card.resize, [height, width], [card.height, card.width]),
        want: { mask_codec: "rle", size },
        stamps: [["due", node, due], ["sent", node, now()]],
        data, // Last: the worker reads the rest before the picture is looked at.
      };
      const answered = new Promise((resolve) => this.#waiting.set(id, resolve));
      const payload = MessagePack.encode(message, WIDE);
      const sent = this.#broker.publishAsync(`${PREFIX}/frames/${model}/${this.#vehicle}/${CAMERA}`, payload, {
        qos: 1,
        properties: {
          contentType: FRAME_TYPE,
          responseTopic: `${PREFIX}/masks/${this.#vehicle}/${CAMERA}`,
          correlationData: new TextEncoder().encode(id),
          ...(deadlineMs && { messageExpiryInterval: Math.ceil(deadlineMs / 1000) }),
        },
      });
      this.#unacknowledged++;
      const taken = sent.then(() => (this.#unacknowledged--, answered));
      const late = `no answer within ${this.#timeoutMs} ms: the frame is lost, send it again`;
      const answer = await within(this.#timeoutMs, late, taken).finally(() => this.#waiting.delete(id));
      if (answer.status !== "answered") throw new Error(`${answer.status}: ${answer.reason}`);
      const stamps = [...answer.stamps, ["returned", node, answer.returned]];
      const mask = unpackMask(answer);
      stamps.push(["mask_decoded", node, now()]);
      return { mask, height: answer.shape[0], width: answer.shape[1], card, answer, stages: stages(stamps) };
    }

    close() {
      return this.#broker.endAsync(this.#unacknowledged > 0);
    }

    #heard(topic, payload) {
      const returned = now();
      const message = MessagePack.decode(payload, WIDE);
      if (message.v !== 1) return;
      if (topic.startsWith(`${PREFIX}/status/`)) {
        this.#workers.set(topic, message.state === "online" ? message.cards : []);
        this.#announced.dispatchEvent(new Event("worker"));
      } else {
        this.#waiting.get(message.id)?.({ ...message, returned });
      }
    }
  }

  /** Codec, height and width of a JPEG or PNG, from its header. */
  function readHeader(data) {
    const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
    try {
      if (view.getUint32(0) === 0x89504e47) return { codec: "png", height: view.getUint32(20), width: view.getUint32(16) };
      for (let at = 2; view.getUint16(0) === 0xffd8 && view.getUint8(at) === 0xff; ) {
        const marker = view.getUint8(at + 1);
        if (marker === 0xff) at += 1; // A fill byte.
        else if (marker === 0xd9 || marker === 0xda) break;
        else if (marker >= 0xc0 && marker <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(marker))
          return { codec: "jpeg", height: view.getUint16(at + 5), width: view.getUint16(at + 7) };
        else at += 2 + view.getUint16(at + 2);
      }
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
    }
    throw new Error("the file is neither a whole JPEG nor a PNG: choose another");
  }

  /** The resize that the worker is to make: shared/imaging/geometry.py's plan(), number by number. */
  function plan(resize, [height, width], [targetHeight, targetWidth]) {
    if (!["crop", "letterbox", "stretch"].includes(resize)) throw new Error(`no resize ${resize} is known to this page`);
    const isWider = width * targetHeight > height * targetWidth;
    const fit = (length, limit) => Math.min(limit, Math.max(1, length));
    let [cropHeight, cropWidth, pasteHeight, pasteWidth] = [height, width, targetHeight, targetWidth];
    if (resize === "crop" && isWider) cropWidth = even((height * targetWidth) / targetHeight, width);
    else if (resize === "crop") cropHeight = even((width * targetHeight) / targetWidth, height);
    else if (resize === "letterbox" && isWider) pasteHeight = fit(rounded((height * targetWidth) / width), targetHeight);
    else if (resize === "letterbox") pasteWidth = fit(rounded((width * targetHeight) / height), targetWidth);
    return {
      source_height: height,
      source_width: width,
      crop_top: Math.floor((height - cropHeight) / 4) * 2,
      crop_left: Math.floor((width - cropWidth) / 4) * 2,
      crop_height: cropHeight,
      crop_width: cropWidth,
      target_height: targetHeight,
      target_width: targetWidth,
      paste_top: Math.floor((targetHeight - pasteHeight) / 2),
      paste_left: Math.floor((targetWidth - pasteWidth) / 2),
      paste_height: pasteHeight,
      paste_width: pasteWidth,
    };
  }

  /** The even number nearest to `length`, at least 1; all of `limit` where that is nearer. */
  function even(length, limit) {
    return length > limit - 1 ? limit : Math.max(1, Math.min(limit, rounded(length / 2) * 2));
  }

  /** As Python rounds: halves go to the even number. */
  function rounded(value) {
    const below = Math.floor(value);
    return value - below === 0.5 ? below + (below % 2) : Math.round(value);
  }

  /** Class ids from runs: first the id of each, a byte; then the length of each, two bytes, little-endian. */
  function unpackMask({ codec, data, shape }) {
    const pixels = shape[0] * shape[1];
    if (codec !== "rle" || pixels > MOST_PIXELS) throw new Error(`a mask of ${shape} packed as ${codec}: not asked for`);
    const runs = data.length / 3;
    const lengths = new DataView(data.buffer, data.byteOffset + Math.floor(runs));
    const mask = new Uint8Array(pixels);
    let at = 0;
    for (let run = 0; run < runs; run++) {
      const end = at + lengths.getUint16(2 * run, true);
      mask.fill(data[run], at, end);
      at = end;
    }
    if (at !== pixels) throw new Error(`a mask of ${at} pixels where ${pixels} were announced: it is damaged`);
    return mask;
  }

  /** Where the time went: stages of one node by its own clock; what lies between the nodes is the crossing. */
  function stages(stamps) {
    const own = stamps[0][1];
    const ms = (from, to) => Number(to[2] - from[2]) / 1e6;
    const first = stamps.findIndex(([, node]) => node !== own);
    const last = stamps.findIndex(([, node], place) => place > first && node === own);
    const cloud = ms(stamps[first], stamps[last - 1]);
    return [
      ["sent", ms(stamps[0], stamps[first - 1])],
      ...stamps.slice(first + 1, last).map((stamp, place) => [stamp[0], ms(stamps[first + place], stamp)]),
      ["cloud", cloud],
      ["crossing", ms(stamps[first - 1], stamps[last]) - cloud],
      ["total", ms(stamps[0], stamps.at(-1))],
    ];
  }

  /** Nanoseconds since 1970 of a clock that nobody sets. */
  function now() {
    return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n;
  }

  function within(timeoutMs, what, promise) {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(what)), timeoutMs)));
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
  }

  return { connect, plan };
})();
