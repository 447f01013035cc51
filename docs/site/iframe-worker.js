// A browser starts no worker for a page that was opened as a file. The search then runs in a hidden frame instead, which has
// the same two ends: postMessage into it, "message" events out of it.
(() => {
  "use strict";

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.onerror = null;
      this.waiting = [];
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.inside.postMessage = (data) => this.tell(data);
      this.inside.importScripts = (...urls) =>
        urls.reduce((before, next) => before.then(() => this.load(next)), Promise.resolve());
      this.load(url).then(() => this.begin(), (error) => this.onerror?.(error));
    }

    load(url) {
      return new Promise((done, failed) => {
        const script = this.inside.document.createElement("script");
        script.src = String(url);
        script.onload = () => done();
        script.onerror = () => failed(new Error(`cannot load ${url}`));
        this.inside.document.body.append(script);
      });
    }

    begin() {
      for (const data of this.waiting) this.give(data);
      this.waiting = null;
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data);
      else this.give(data);
    }

    give(data) {
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }

    tell(data) {
      const event = new MessageEvent("message", { data });
      this.onmessage?.(event);
      this.dispatchEvent(event);
    }

    terminate() {
      this.frame.remove();
    }
  }

  if (location.protocol === "file:") {
    window.IFrameWorker = IFrameWorker;
    window.Worker = IFrameWorker;
  }
})();
