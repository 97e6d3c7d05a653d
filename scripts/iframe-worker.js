// Search of a site that is opened from a folder: a browser starts no Worker for file://, so a hidden frame stands for it.
//
// Material's search runs in a Worker, which gets and sends messages. A frame without an address has the origin of its
// page, also for file://, so both sides may touch each other. The frame runs the worker's script, messages to it become
// events of its window, and its `postMessage` becomes an event of this object. Messages wait until the script has run.
// `importScripts` is missing: the script needs it for languages other than English only.

if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.frame.title = "search";
      document.body.append(this.frame);
      this.inner = this.frame.contentWindow;
      this.inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.frame.contentDocument.createElement("script");
      script.src = new URL(address, document.baseURI).href;
      this.ready = new Promise((resolve, reject) => {
        script.onload = resolve;
        script.onerror = () => reject(new Error(`${script.src} cannot be read`));
      });
      this.frame.contentDocument.body.append(script);
    }

    async postMessage(data) {
      await this.ready;
      this.inner.dispatchEvent(new this.inner.MessageEvent("message", { data }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
