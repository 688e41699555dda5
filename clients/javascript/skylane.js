// Sends images from a browser to a Skylane worker over MQTT on websockets, and reads the masks.
// Needs mqtt.js and MessagePack for JavaScript, loaded first (see index.html). docs/reference/protocol.md describes the messages.
"use strict";

const Skylane = (() => {
  const PREFIX = "skylane/v1";
  const FRAME_TYPE = "application/vnd.skylane.frame+msgpack";
  const CAMERA = "page";
  const MAX_PIXELS = 1 << 25; // The worker has the same limit.
  const WIDE = { useBigInt64: true }; // Nanoseconds since 1970 exceed the range of exact numbers.

  /** Connects to a broker, "ws://host:9001". Rejects if the broker does not respond in time. */
  async function connect(url, { vehicle = "browser", timeoutMs = 10_000 } = {}) {
    const options = { protocolVersion: 5, connectTimeout: timeoutMs, reconnectPeriod: 0 };
    const broker = await mqtt.connectAsync(url, options, false).catch(() => {
      throw new Error(`no broker at ${url}: is it running, and does it accept websockets?`);
    });
    const client = new Client(broker, vehicle, timeoutMs);
    const topics = [`${PREFIX}/status/worker/+`, `${PREFIX}/masks/${vehicle}/${CAMERA}`];
    const silent = `the broker at ${url} does not acknowledge subscriptions within ${timeoutMs} ms: does it support MQTT 5?`;
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
    #unacknowledged = 0; // Frames without PUBACK; a regular disconnect would wait for them.
    #workers = new Map(); // The model cards of each worker, by status topic.
    #waiting = new Map(); // Callbacks for answers, by frame id.
    #announced = new EventTarget();

    constructor(broker, vehicle, timeoutMs) {
      [this.#broker, this.#vehicle, this.#timeoutMs] = [broker, vehicle, timeoutMs];
      broker.on("message", (topic, payload) => this.#receive(topic, payload));
    }

    /** Resolves to the card of a model, once a worker announces it: input size, resize, labels with colours. */
    async card(model) {
      const found = () => [...this.#workers.values()].flat().find((card) => card.name === model);
      const announced = new Promise((resolve) => {
        const check = () => found() && resolve(found());
        this.#announced.addEventListener("worker", check);
        check();
      });
      return within(this.#timeoutMs, `no worker announces model ${model}: is one running, on this broker?`, announced);
    }

    /**
     * Sends an image (a Blob with a JPEG or PNG) and resolves to {mask, height, width, card, answer, stages}.
     * `mask`: a Uint8Array of class ids, row by row; 255 marks pixels that the model did not process. `size`: the
     * mask's size, that of the image ("frame") or of the model ("model"). `stages`: pairs of name and milliseconds.
     * Rejects with the reason if there is no mask.
     */
    async send(image, { model = "road-small", size = "frame", deadlineMs = null } = {}) {
      const due = now();
      const card = await this.card(model);
      if (card.task !== "segmentation") throw new Error(`model ${model} answers ${card.task}: this page supports segmentation`);
      const data = new Uint8Array(await image.arrayBuffer());
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
        data, // Last, so that the worker reads the other fields before the image.
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

    #receive(topic, payload) {
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

  /** Reads codec, height and width from the header of a JPEG or PNG. */
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
    throw new Error("the file is neither a complete JPEG nor a PNG: choose another");
  }

  /** Plans the resize for the worker, exactly as plan() in shared/imaging/geometry.py. */
  function plan(resize, [height, width], [targetHeight, targetWidth]) {
    if (!["crop", "letterbox", "stretch"].includes(resize)) throw new Error(`this page does not support resize ${resize}`);
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

  /** The even number nearest to `length`, between 1 and `limit`; `limit` itself if it is nearer. */
  function even(length, limit) {
    return length > limit - 1 ? limit : Math.max(1, Math.min(limit, rounded(length / 2) * 2));
  }

  /** Rounds halves to even, as Python does. */
  function rounded(value) {
    const below = Math.floor(value);
    return value - below === 0.5 ? below + (below % 2) : Math.round(value);
  }

  /** Unpacks runs: the data has the class ids of all runs, one byte each, then their lengths, uint16 little-endian. */
  function unpackMask({ codec, data, shape }) {
    const pixels = shape[0] * shape[1];
    if (codec !== "rle" || pixels > MAX_PIXELS) throw new Error(`a mask of ${shape} in codec ${codec} was not requested`);
    const runs = data.length / 3;
    const lengths = new DataView(data.buffer, data.byteOffset + Math.floor(runs));
    const mask = new Uint8Array(pixels);
    let at = 0;
    for (let run = 0; run < runs; run++) {
      const end = at + lengths.getUint16(2 * run, true);
      mask.fill(data[run], at, end);
      at = end;
    }
    if (at !== pixels) throw new Error(`a mask of ${at} pixels instead of the announced ${pixels}: it is corrupt`);
    return mask;
  }

  /** The duration of each stage, by the clock of its node; "crossing" is the time between the nodes. */
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

  /** Nanoseconds since 1970 by a clock that is never adjusted. */
  function now() {
    return BigInt(Math.round((performance.timeOrigin + performance.now()) * 1000)) * 1000n;
  }

  function within(timeoutMs, message, promise) {
    let timer;
    const late = new Promise((_, reject) => (timer = setTimeout(() => reject(new Error(message)), timeoutMs)));
    return Promise.race([promise, late]).finally(() => clearTimeout(timer));
  }

  return { connect, plan };
})();
