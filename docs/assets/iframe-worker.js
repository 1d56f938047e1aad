/* Browsers refuse web workers on pages that are opened as files, and the search of this site is a web worker.
   There, and only there, a worker's script runs in an invisible frame. The theme looks for the name IFrameWorker. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      this.ready = new Promise((resolve) => {
        this.frame.addEventListener("load", () => this.start(new URL(address, location.href).href, resolve), { once: true });
      });
      this.frame.srcdoc = "<!doctype html><title>search</title>";
      document.body.append(this.frame);
    }

    /* What the worker's script posts arrives here as a message of the worker. */
    start(address, resolve) {
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => {
        const message = new MessageEvent("message", { data });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      };
      inside.importScripts = async (...addresses) => {
        for (const one of addresses) await addScript(inside.document, one);
      };
      addScript(inside.document, address).then(resolve);
    }

    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        inside.dispatchEvent(new inside.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}

function addScript(target, address) {
  return new Promise((resolve, reject) => {
    const script = target.createElement("script");
    script.src = address;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`${address} could not be loaded`));
    target.body.append(script);
  });
}
