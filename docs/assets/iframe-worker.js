/* Browsers start no worker from a file: a hidden frame does its work, so that search runs without a server. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.body.appendChild(document.createElement("iframe"));
      this.frame.hidden = true;
      const inside = this.frame.contentDocument;
      const load = (address) =>
        new Promise((resolve, reject) => {
          const script = inside.createElement("script");
          Object.assign(script, { src: address, async: false, onload: resolve, onerror: reject });
          inside.body.append(script);
        });
      this.frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.frame.contentWindow.importScripts = (...addresses) => Promise.all(addresses.map(load));
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };
}
